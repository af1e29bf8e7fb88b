//! Writes words that the host has to device memory: tables of slots and of where sequences start.
//!
//! # Threads
//! A thread a word, as many blocks as it takes.
//!
//! # Why it is shaped so
//! The words travel in the parameters of the launch. A copy from the host's memory would read it when the stream comes to
//! it, again at each replay of a captured graph, when it may hold something else; parameters are the launch's own.
use cuda_std::parameter::Words;
use cuda_std::thread::{block_idx_x, thread_idx_below};
use cuda_std::{GlobalMut, parameter_word};

/// Threads of a block.
pub const THREADS: usize = 128;
/// The most words of a launch: with the other arguments, below the 4 KB that parameters may take.
pub const MOST_WORDS: usize = 896;

/// Blocks of a launch.
#[must_use]
pub const fn grid(count: u32) -> [u32; 2] {
    [count.div_ceil(THREADS as u32), 1]
}

cuda_std::arguments! {
    /// What the kernel takes.
    pub struct Args {
        /// What is written.
        pub words: Words<MOST_WORDS>,
        /// Where to: `count` words.
        pub destination: GlobalMut<u32>,
        /// Words, at most [`MOST_WORDS`].
        pub count: u32,
    }
    for upload_kernel
}

upload_kernel! {
    kernel "upload", capability 75, blocks 1;
    entry gdn_upload = run, threads THREADS, shared 0;
}

/// The kernel.
///
/// # Safety
/// Called once by each of [`THREADS`] threads of each block of `grid()`; `destination` has `count` words, at most
/// [`MOST_WORDS`].
#[inline(always)]
unsafe fn run(args: Args) {
    let index = block_idx_x() as usize * THREADS + thread_idx_below::<THREADS>();
    if index < args.count as usize {
        // SAFETY: bounds: index < count <= MOST_WORDS. Owner: one thread a word.
        unsafe { args.destination.put(index, parameter_word!("gdn_upload", args.words, index)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_std::emulator::{self, Launch, Memory};

    /// The kernel on arguments by reference: an emulated thread is handed no more than 1 KB.
    unsafe fn body(args: &Args) {
        // SAFETY: the contract is the same.
        unsafe { (KERNEL.entries[0].body)(*args) }
    }

    #[test]
    fn every_word_arrives_and_no_other_is_written() {
        for count in [0, 1, 127, 128, 129, MOST_WORDS] {
            let words: Vec<u32> = (0..count as u32).map(|i| i * 7 + 1).collect();
            let mut destination = vec![u32::MAX; MOST_WORDS + 1];
            let mut memory = Memory::new();
            let args = Args {
                words: Words::new(&words),
                destination: memory.read_write(&mut destination),
                count: count as u32,
            };
            let launch = Launch { grid: grid(count as u32), threads: THREADS as u32, shared_bytes: 0, order: 1 };
            // SAFETY: types: the entry takes `Args`. Lengths: `memory` has the words. Lifetime: it borrows them.
            unsafe { emulator::run(&launch, &memory, body, &args) }.unwrap_or_else(|fault| panic!("{fault}"));
            drop(memory);
            assert_eq!(destination[..count], words);
            assert!(destination[count..].iter().all(|&word| word == u32::MAX));
        }
    }
}
