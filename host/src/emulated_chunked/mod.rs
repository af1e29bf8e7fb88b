//! The chunked form on the CPU, in the emulator.
use crate::call::{Call, Gates};
use crate::chunked::{self, SUPER_BLOCK, Scratch};
use crate::error::{Error, Result};
use crate::kernel::{Pointers, Problem};
use cuda_std::emulator::{self, Memory};
use cuda_std::{Global, GlobalMut};

/// The capability that the emulator passes for.
const CAPABILITY: u32 = u32::MAX;

/// Runs `call` by the sources of the two kernels of the chunked form. `order` seeds the order in which threads take turns;
/// no right kernel's result depends on it.
///
/// # Errors
/// As [`crate::emulated::run`].
pub fn run_chunked(call: Call<'_>, order: u64) -> Result<()> {
    run_in_super_blocks(call, order, SUPER_BLOCK)
}

/// [`run_chunked`] with super-blocks of so many tokens.
fn run_in_super_blocks(mut call: Call<'_>, order: u64, super_block: usize) -> Result<()> {
    /// Aligned as device memory is.
    #[repr(C, align(16))]
    #[derive(Clone, Copy)]
    struct Floats([f32; 4]);

    call.validate()?;
    let problem = Problem::of(&call);
    let floats = chunked::scratch_floats(&problem.heads, problem.tokens, super_block);
    // Read before written is NaN.
    let mut chunks = vec![Floats([f32::NAN; 4]); floats.div_ceil(4)];
    let mut own_state = vec![f32::NAN; if call.state.is_none() { chunked::state_floats(&problem)? } else { 0 }];
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
    let scratch = Scratch {
        chunks: GlobalMut::new(memory.read_write(&mut chunks).as_ptr().cast()),
        state: memory.read_write(&mut own_state),
    };
    chunked::require(CAPABILITY, &problem, &pointers)
        .map_err(|reason| Error::Refused { kernel: "chunk_scan", reason })?;
    for launch in chunked::launches(&problem, &pointers, &scratch, super_block) {
        let entry = launch.entry;
        let geometry =
            emulator::Launch { grid: launch.grid, threads: entry.threads, shared_bytes: entry.shared_bytes, order };
        // SAFETY: types: the entry takes these arguments. Lengths: whatever the kernel touches outside `memory` is refused.
        // Lifetime: `memory` borrows the slices until the launches are over.
        unsafe { emulator::run(&geometry, &memory, entry.body, launch.args) }
            .map_err(|fault| Error::Emulator { kernel: entry.symbol, fault: Box::new(fault) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
