//! The GPU kernels on the CPU, in the emulator: slow, and checked at every access.
use crate::call::{Call, Checkpoints, Decay, Gates, States, View};
use crate::dtype::{Element, Indices, Slice, SliceMut};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::policy::{Card, PathChoice, Policy};
use crate::steps::{self, Step};
use cuda_std::emulator::{Launch, Memory};
use cuda_std::kernel::Entry;
use cuda_std::{Global, GlobalMut};
#[cfg(feature = "cli")]
pub use probe::multiply;
pub use states::{copy_states, zero_states};

mod states;

/// The card that the emulator passes for: the one that runs every kernel, with the shared memory of the smallest card that
/// they are for.
const CARD: Card = Card::new(90, u32::MAX, 99 << 10);

/// Runs `call` by the source of `kernel`. `order` seeds the order in which threads take turns; no right kernel's result
/// depends on it.
///
/// # Errors
/// As [`Call::validate`]; [`Error::Refused`] where the kernel is not for such a problem; [`Error::Emulator`] where the
/// kernel reads or writes what it must not, with its line.
pub fn run(call: Call<'_>, kernel: Kernel, order: u64) -> Result<()> {
    run_with(call, &Policy::with_path(PathChoice::Forced(kernel)), order)
}

/// [`run`] by the kernel that `policy` chooses, with no more scratch than it allows.
///
/// # Errors
/// As [`run`].
pub fn run_with(call: Call<'_>, policy: &Policy, order: u64) -> Result<()> {
    run_on(&CARD, call, policy, order)
}

/// [`run_with`] as on `card`.
fn run_on(card: &Card, call: Call<'_>, policy: &Policy, order: u64) -> Result<()> {
    call.validate()?;
    let request = call.request();
    let mut memory = Memory::new();
    lend(call, &mut memory);
    let chosen = steps::choose(card, &request, policy)?;
    // What a kernel reads of it without having written it shows as NaN. Quads, since scratch stands on 16 bytes.
    let mut scratch = vec![Poison([f32::NAN; 4]); chosen.scratch_bytes.div_ceil(size_of::<Poison>())];
    let scratch = memory.read_write(&mut scratch);
    steps::steps(card, &request, &chosen, policy, GlobalMut::new(scratch.as_ptr().cast()), |step| match step {
        Step::Recurrent(step) => launch(step.entry, step.grid, step.args, &memory, order),
        Step::Chunked(step) => launch(step.entry, step.grid, step.args, &memory, order),
        Step::Decode(step) => launch(step.entry, step.grid, step.args, &memory, order),
        Step::Upload(step) => launch(step.entry, step.grid, step.args, &memory, order),
        Step::Widen(step) => launch(step.entry, step.grid, step.args, &memory, order),
        Step::Narrow(step) => launch(step.entry, step.grid, step.args, &memory, order),
        Step::Copy(step) => launch(step.entry, step.grid, step.args, &memory, order),
        Step::ClearPadding(step) => launch(step.entry, step.grid, step.args, &memory, order),
    })
}

/// Lends the emulator every slice of `call`. Launches reach them by the addresses that its request has, so that what may be
/// written has to be known under them.
fn lend<'a>(call: Call<'a>, memory: &mut Memory<'a>) {
    for view in [call.q, call.k, call.v] {
        lend_view(view, memory);
    }
    match call.gates {
        Gates::Log { g, beta } => [g, beta].into_iter().for_each(|view| lend_view(view, memory)),
        Gates::Linear { decay, beta } => [decay, beta].into_iter().for_each(|view| lend_view(view, memory)),
        Gates::Raw { a, b, decay: Decay::ALog(decay) | Decay::NegExpALog(decay), dt_bias, .. } => {
            [a, b].into_iter().for_each(|view| lend_view(view, memory));
            ignore(memory.read_only(decay));
            ignore(memory.read_only(dt_bias));
        }
    }
    match call.out.data {
        SliceMut::F32(data) => lend_mut(data, memory),
        SliceMut::Bf16(data) => lend_mut(data, memory),
        SliceMut::F16(data) => lend_mut(data, memory),
    }
    match call.states {
        States::InPlace(state) => lend_mut(state.data, memory),
        States::Apart { initial, last } => {
            initial.into_iter().for_each(|state| ignore(memory.read_only(state.data)));
            last.into_iter().for_each(|state| lend_mut(state.data, memory));
        }
    }
    let per_token = match call.checkpoints {
        Some(Checkpoints::PerToken(indices)) => Some(indices),
        _ => None,
    };
    for indices in [call.indices, call.output_indices, per_token].into_iter().flatten() {
        match indices {
            Indices::I32(data) => ignore(memory.read_only(data)),
            Indices::U32(data) => ignore(memory.read_only(data)),
            Indices::I64(data) => ignore(memory.read_only(data)),
        }
    }
    call.every.into_iter().for_each(|(_, state)| lend_mut(state.data, memory));
}

/// Read-only memory is known by the address that it has anyway.
fn ignore<T>(_: Global<T>) {}

fn lend_view<'a>(view: View<'a>, memory: &mut Memory<'a>) {
    match view.data {
        Slice::F32(data) => ignore(memory.read_only(data)),
        Slice::Bf16(data) => ignore(memory.read_only(data)),
        Slice::F16(data) => ignore(memory.read_only(data)),
    }
}

fn lend_mut<'a, T: Element>(data: &'a mut [T], memory: &mut Memory<'a>) {
    memory.read_write(data).as_ptr().expose_provenance();
}

/// Sixteen bytes on sixteen bytes.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Poison([f32; 4]);

fn launch<A: Copy + Send + Sync>(
    entry: &Entry<A>,
    grid: [u32; 2],
    args: A,
    memory: &Memory<'_>,
    order: u64,
) -> Result<()> {
    let launch = Launch { grid, threads: entry.threads, shared_bytes: entry.shared_bytes, order };
    // SAFETY: types: the entry takes these arguments. Lengths: whatever the kernel touches outside `memory` is refused.
    // Lifetime: `memory` borrows the slices until the launch is over.
    unsafe { cuda_std::emulator::run(&launch, memory, entry.body, args) }
        .map_err(|fault| Error::Emulator { kernel: entry.symbol, fault: Box::new(fault) })
}

#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod chunked_tests;
#[cfg(feature = "cli")]
mod probe;
#[cfg(test)]
mod tensor_tests;
