//! The ways to run the recurrence, and runs whose outputs are poisoned before.
#![forbid(unsafe_code)]
use host::compare::Bar;
use host::inputs::Inputs;
use host::{Call, Heads, Kernel, Result, cpu};

use crate::checks::{Fails, Output, agrees, bars, close, expected_of, same_bits};
use crate::gpu_or_skip::{gpu, say_paths_are_missing};

/// Orders of threads that kernels are emulated in: ascending, and two random ones.
pub const ORDERS: [u64; 3] = [0, 1, 2];

/// One way to run the recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The CPU backend, by a path of its own.
    Cpu(cpu::Path),
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
            Self::Cpu(path) => cpu::run_by(call, path),
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
            Self::Cpu(_) => None,
            Self::Emulated(kernel) | Self::Cuda(kernel) => Some(kernel),
        }
    }

    /// Whether it takes tokens 32 at a time: within the bar of the others, and not in their bits.
    #[must_use]
    pub fn is_chunked(self) -> bool {
        match self.kernel() {
            Some(kernel) => kernel.is_chunked(),
            None => self == Self::Cpu(cpu::Path::Chunked),
        }
    }

    /// That `parts`, which it made of a prompt cut between chunks, are what it makes of the `whole`: bit for bit, on tensor
    /// cores within a bar.
    ///
    /// # Errors
    /// Where they are not.
    pub fn same_across_cuts(self, heads: &Heads, whole: &Output, parts: &Output) -> Result<(), Fails> {
        if self.kernel() == Some(Kernel::ChunkedTensor) {
            return close(heads, whole, parts, &bars::CUT_ON_TENSOR_CORES);
        }
        same_bits(heads, whole, parts)
    }

    /// Whether it is one of the kernels that go token by token, which all have the same bits.
    #[must_use]
    pub fn is_recurrent_kernel(self) -> bool {
        self.kernel().is_some_and(|kernel| !kernel.is_chunked())
    }

    /// Whether it is for such heads: kernels that share a key head's rows go up to four value heads per key head.
    #[must_use]
    pub fn takes(self, heads: &Heads) -> bool {
        matches!(self.kernel(), None | Some(Kernel::RecurrentByColumn | Kernel::Decode)) || heads.values_per_key() <= 4
    }

    /// The tensors whose rows it moves by 16 bytes.
    #[must_use]
    pub fn needs_alignment_of(self) -> &'static [&'static str] {
        match self.kernel() {
            Some(Kernel::RecurrentByKeyHead | Kernel::ChunkedTensor) => &["q", "k", "v"],
            Some(Kernel::Chunked) => &["q", "k", "v", "out"],
            _ => &[],
        }
    }
}

/// Every path of this machine: both of the CPU, every kernel in the emulator, every kernel on the GPU if there is one.
///
/// # Panics
/// As [`gpu`].
#[must_use]
pub fn every_path() -> Vec<Path> {
    let mut paths = Vec::from(cpu::Path::ALL.map(Path::Cpu));
    paths.extend(Kernel::ALL.map(Path::Emulated));
    match gpu() {
        Some(_) => paths.extend(Kernel::ALL.map(Path::Cuda)),
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

/// The chunked paths of this machine.
///
/// # Panics
/// As [`gpu`].
#[must_use]
pub fn every_chunked_path() -> Vec<Path> {
    let mut paths = every_path();
    paths.retain(|path| path.is_chunked());
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

/// That the recurrent kernels among `outputs` have each other's bits.
///
/// # Errors
/// The first that has not, with both named.
pub fn recurrent_kernels_have_the_same_bits(heads: &Heads, outputs: &[(Path, Output)]) -> Result<(), Fails> {
    let mut kernels = outputs.iter().filter(|(path, _)| path.is_recurrent_kernel());
    let Some((first, expected)) = kernels.next() else { return Ok(()) };
    kernels.try_for_each(|(path, output)| {
        same_bits(heads, expected, output).map_err(|fails| format!("{path:?} and {first:?}: {fails}"))
    })
}

/// [`on_every_path`], each output held to `bar` against float64, and the recurrent kernels to each other's bits.
///
/// # Panics
/// If a path refuses or a check fails, with both named.
#[track_caller]
pub fn holds_on_every_path(case: &str, inputs: &Inputs, bar: &Bar) -> Vec<(Path, Output)> {
    holds_within(case, inputs, bar, bar)
}

/// [`holds_on_every_path`] with another bar for the chunked paths.
///
/// # Panics
/// As [`holds_on_every_path`].
#[track_caller]
pub fn holds_within(case: &str, inputs: &Inputs, bar: &Bar, chunked: &Bar) -> Vec<(Path, Output)> {
    let expected = expected_of(inputs);
    let outputs = on_every_path(inputs);
    for (path, output) in &outputs {
        let bar = if path.is_chunked() { chunked } else { bar };
        if let Err(fails) = agrees(&inputs.heads, &expected, output, bar) {
            panic!("{case}, {path:?}, {} tokens: {fails}", inputs.tokens);
        }
    }
    if let Err(fails) = recurrent_kernels_have_the_same_bits(&inputs.heads, &outputs) {
        panic!("{case}, {} tokens: {fails}", inputs.tokens);
    }
    outputs
}
