//! The GPU kernels on the CPU, in the emulator: slow, and checked at every access.
use crate::call::{Call, Gates};
use crate::error::{Error, Result};
use crate::kernel::{self, Kernel, Pointers, Problem};
use cuda_std::emulator::{Launch, Memory};
use cuda_std::{Global, GlobalMut};

/// The capability that the emulator passes for: it knows every word of the kernels.
const CAPABILITY: u32 = u32::MAX;

/// Runs `call` by the source of `kernel`. `order` seeds the order in which threads take turns; no right kernel's result
/// depends on it.
///
/// # Errors
/// As [`Call::validate`]; [`Error::Refused`] where the kernel is not for such a problem; [`Error::Emulator`] where the
/// kernel reads or writes what it must not, with its line.
pub fn run(mut call: Call<'_>, kernel: Kernel, order: u64) -> Result<()> {
    call.validate()?;
    let problem = Problem::of(&call);
    let mut memory = Memory::new();
    let Gates::Log { g, beta } = &call.gates;
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
    kernel::choose(CAPABILITY, &problem, &pointers, Some(kernel))?;
    let entry = kernel.entry(&call.heads);
    let launch =
        Launch { grid: kernel.grid(&call.heads), threads: entry.threads, shared_bytes: entry.shared_bytes, order };
    let args = kernel::recurrent_args(&problem, &pointers);
    // SAFETY: types: the entry takes `Args`. Lengths: whatever the kernel touches outside `memory` is refused. Lifetime:
    // `memory` borrows the slices until the launch is over.
    unsafe { cuda_std::emulator::run(&launch, &memory, entry.body, args) }
        .map_err(|fault| Error::Emulator { kernel: entry.symbol, fault: Box::new(fault) })
}
