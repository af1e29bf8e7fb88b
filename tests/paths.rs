//! The ways to run the recurrence, and runs whose outputs are poisoned before.
#![forbid(unsafe_code)]
use host::compare::Bar;
use host::inputs::Inputs;
use host::{Call, Heads, Kernel, Result};

use crate::checks::{Output, agrees, expected_of, same_bits};
use crate::gpu_or_skip::{gpu, say_paths_are_missing};

/// Orders of threads that kernels are emulated in: ascending, and two random ones.
pub const ORDERS: [u64; 3] = [0, 1, 2];

/// One way to run the recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The CPU backend token by token, which is what it takes for few tokens or heads.
    Cpu,
    /// A kernel in the emulator.
    Emulated(Kernel),
    /// A kernel on the GPU.
    Cuda(Kernel),
}

impl Path {
    /// Runs `call`, with the emulator's threads in the second of [`ORDERS`].
    ///
    /// # Errors
    /// Those of the path.
    pub fn run(self, call: Call<'_>) -> Result<()> {
        self.run_in_order(call, ORDERS[1])
    }

    /// Runs `call`, with the emulator's threads in `order`.
    ///
    /// # Errors
    /// Those of the path.
    pub fn run_in_order(self, call: Call<'_>, order: u64) -> Result<()> {
        match self {
            Self::Cpu => host::cpu::run_by(call, host::cpu::Path::Recurrent),
            Self::Emulated(kernel) => host::emulated::run(call, kernel, order),
            Self::Cuda(kernel) => {
                let gpu = gpu().expect("a path of a machine with a GPU");
                gpu.run_on_slices(call, Some(kernel)).map(|launch| assert_eq!(launch.kernel, kernel))
            }
        }
    }

    /// The kernel, if it is one.
    #[must_use]
    pub fn kernel(self) -> Option<Kernel> {
        match self {
            Self::Cpu => None,
            Self::Emulated(kernel) | Self::Cuda(kernel) => Some(kernel),
        }
    }

    /// Whether it is for such heads: by key head goes up to four value heads per key head.
    #[must_use]
    pub fn takes(self, heads: &Heads) -> bool {
        self.kernel() != Some(Kernel::RecurrentByKeyHead) || heads.values_per_key() <= 4
    }
}

/// Every path of this machine: the CPU, both kernels in the emulator, both on the GPU if there is one.
///
/// # Panics
/// As [`gpu`].
#[must_use]
pub fn every_path() -> Vec<Path> {
    let mut paths = vec![Path::Cpu];
    paths.extend(Kernel::RECURRENT.map(Path::Emulated));
    match gpu() {
        Some(_) => paths.extend(Kernel::RECURRENT.map(Path::Cuda)),
        None => say_paths_are_missing(),
    }
    paths
}

/// Every path of this machine that is for such heads.
///
/// # Panics
/// As [`gpu`].
#[must_use]
pub fn every_path_for(heads: &Heads) -> Vec<Path> {
    let mut paths = every_path();
    paths.retain(|path| path.takes(heads));
    paths
}

/// What `path` makes of `inputs`.
///
/// # Panics
/// If it refuses.
#[must_use]
pub fn run(path: Path, inputs: &Inputs) -> Output {
    run_in_order(path, inputs, ORDERS[1])
}

/// What `path` makes of `inputs` with the emulator's threads in `order`.
///
/// # Panics
/// If it refuses.
#[must_use]
pub fn run_in_order(path: Path, inputs: &Inputs, order: u64) -> Output {
    let mut output = Output::poisoned(inputs);
    if let Err(error) = path.run_in_order(inputs.call(&mut output.out, &mut output.state), order) {
        panic!("{path:?}, {} tokens, {:?}: {error}", inputs.tokens, inputs.heads);
    }
    output
}

/// What every path that is for these heads makes of `inputs`, in the order of [`every_path`].
///
/// # Panics
/// If one refuses.
#[must_use]
pub fn on_every_path(inputs: &Inputs) -> Vec<(Path, Output)> {
    every_path_for(&inputs.heads).into_iter().map(|path| (path, run(path, inputs))).collect()
}

/// [`on_every_path`], each output held to `bar` against float64, and the kernels to each other's bits.
///
/// # Panics
/// If a path refuses or a check fails, with both named.
#[track_caller]
pub fn holds_on_every_path(case: &str, inputs: &Inputs, bar: &Bar) -> Vec<(Path, Output)> {
    let expected = expected_of(inputs);
    let outputs = on_every_path(inputs);
    for (path, output) in &outputs {
        if let Err(fails) = agrees(&inputs.heads, &expected, output, bar) {
            panic!("{case}, {path:?}, {} tokens: {fails}", inputs.tokens);
        }
    }
    // The first is the CPU, which adds in another order.
    for (path, output) in &outputs[1..] {
        if let Err(fails) = same_bits(&inputs.heads, &outputs[1].1, output) {
            panic!("{case}, {path:?} and {:?}, {} tokens: {fails}", outputs[1].0, inputs.tokens);
        }
    }
    outputs
}
