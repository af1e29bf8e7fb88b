//! Tables that the host has and a kernel reads: they travel in the parameters of a launch, so that a captured one keeps its own.
#![forbid(unsafe_code)]
use cuda_std::GlobalMut;
use cuda_std::kernel::Entry;
use cuda_std::parameter::Words;
use kernels_gpu::kernels::upload::{Args, KERNEL, grid};

pub(crate) use kernels_gpu::kernels::upload::MOST_WORDS;

/// One launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub entry: &'static Entry<Args>,
    pub grid: [u32; 2],
    pub args: Args,
}

/// Writes up to [`MOST_WORDS`] words to `destination`.
pub(crate) fn launch(words: &[u32], destination: GlobalMut<u32>) -> Launch {
    let count = words.len() as u32;
    Launch { entry: &KERNEL.entries[0], grid: grid(count), args: Args { words: Words::new(words), destination, count } }
}
