//! The GPU kernels on the CPU, in the emulator: slow, and checked at every access.
use crate::call::{Call, Gates};
use crate::dispatch;
use crate::error::{Error, Result};
use crate::kernel::{self, Kernel, Pointers, Problem};
use crate::policy::{Card, PathChoice, Policy};
use crate::segments::{self, Form};
use cuda_std::emulator::{Launch, Memory};
use cuda_std::kernel::Entry;
use cuda_std::{Global, GlobalMut};
#[cfg(feature = "cli")]
pub use probe::multiply;

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
fn run_on(card: &Card, mut call: Call<'_>, policy: &Policy, order: u64) -> Result<()> {
    call.validate()?;
    let problem = Problem::of(&call);
    let Gates::Log { g, beta } = &call.gates;
    let mut memory = Memory::new();
    let state = match &mut call.state {
        Some(state) => memory.read_write(state.data),
        None => GlobalMut::new(core::ptr::null_mut()),
    };
    let pointers = Pointers {
        q: memory.read_only(call.q.data),
        k: memory.read_only(call.k.data),
        v: memory.read_only(call.v.data),
        g: memory.read_only(g.data),
        beta: memory.read_only(beta.data),
        out: memory.read_write(call.out.data),
        initial_state: Global::new(state.as_ptr()),
        final_state: state,
    };
    let chosen = dispatch::choose(card, &problem, &pointers, policy)?;
    let Some(form) = Form::of(chosen.kernel) else {
        let recurrent = kernel::recurrent_launch(chosen.kernel, &problem, &pointers).expect("not chunked");
        return launch(recurrent.entry, recurrent.grid, recurrent.args, &memory, order);
    };
    let segments = dispatch::cut(form, &problem, &pointers, policy.max_scratch_bytes)
        .map_err(|reason| Error::Refused { kernel: form.kernel().name(), reason })?;
    // What a kernel reads of it without having written it shows as NaN. Quads, since scratch stands on 16 bytes.
    let mut scratch = vec![Poison([f32::NAN; 4]); chosen.scratch_bytes.div_ceil(size_of::<Poison>())];
    let scratch = memory.read_write(&mut scratch);
    for step in segments::launches(card, &problem, &pointers, segments, GlobalMut::new(scratch.as_ptr().cast())) {
        launch(step.entry, step.grid, step.args, &memory, order)?;
    }
    Ok(())
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
mod chunked_tests;
#[cfg(feature = "cli")]
mod probe;
#[cfg(test)]
mod tensor_tests;
