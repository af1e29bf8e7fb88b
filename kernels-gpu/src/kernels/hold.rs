//! Holds multiprocessors, so that other kernels find as few of them as a smaller card has. For measurements.
//!
//! # Threads
//! One warp a block, one block for each multiprocessor to hold. A launch gives each block all the shared memory that a
//! block can have: then no other block that needs shared memory, one of this kernel included, fits beside it.
//!
//! # Why it is shaped so
//! It looks at a flag that the host sets and sleeps in between, so that it takes next to no time from the memory system.
//! The limit ends it where the host never comes to set the flag: a kernel that waits for ever cannot be stopped without
//! its process.
use cuda_std::Global;
use cuda_std::thread::{global_nanoseconds, sleep};
use cuda_std::warp::WARP_SIZE;

/// Threads of a block.
pub const THREADS: usize = WARP_SIZE as usize;

/// Between two looks at the flag.
const SLEEP_NANOSECONDS: u32 = 2_000;

cuda_std::arguments! {
    /// What the kernel takes.
    pub struct Args {
        /// One word: blocks leave once it is not 0.
        pub released: Global<u32>,
        /// How long a block stays at most.
        pub most_nanoseconds: usize,
    }
    for hold_kernel
}

hold_kernel! {
    kernel "hold", capability 75, blocks 1;
    entry gdn_hold = run, threads THREADS, shared 0;
}

/// Waits.
///
/// # Safety
/// Called once by each of [`THREADS`] threads of each block. `released` is one word that is not freed before the kernel
/// has ended; the host may write it meanwhile.
unsafe fn run(args: Args) {
    let start = global_nanoseconds();
    loop {
        // SAFETY: bounds: one word, by the caller. Owner: no thread of the launch writes it. Barrier: none is needed, a
        // late look only waits longer.
        let released = unsafe { args.released.look(0) };
        if released != 0 || global_nanoseconds().wrapping_sub(start) >= args.most_nanoseconds as u64 {
            return;
        }
        sleep::<SLEEP_NANOSECONDS>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_std::emulator::{self, Launch, Memory};

    fn run(released: u32, most_nanoseconds: usize) {
        let flag = [released];
        let mut memory = Memory::new();
        let args = Args { released: memory.read_only(&flag), most_nanoseconds };
        let launch = Launch { grid: [2, 1], threads: THREADS as u32, shared_bytes: 0, order: 1 };
        // SAFETY: types: the entry takes `Args`. Lengths: `memory` has the one word. Lifetime: it borrows the flag.
        unsafe { emulator::run(&launch, &memory, KERNEL.entries[0].body, args) }.unwrap();
    }

    #[test]
    fn the_flag_or_the_limit_ends_it() {
        run(1, usize::MAX);
        run(0, 10_000);
    }
}
