//! What can go wrong, by cause. Messages name the argument, its value, the limit, and the cure where one is known.
#![forbid(unsafe_code)]

/// The result of everything here that can fail.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a call was refused or failed. Nothing has been written where a call is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A count, a length or a stride does not fit.
    #[error("{argument}: expected {expected}, got {got}")]
    Shape {
        /// The argument.
        argument: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A head size that no kernel is written for.
    #[error("{argument} = {got} is not supported: the kernels are written for {supported}")]
    HeadDim {
        /// `head_k_dim` or `head_v_dim`.
        argument: &'static str,
        /// What it is.
        got: usize,
        /// What it has to be.
        supported: usize,
    },
    /// A null device pointer to something that has elements.
    #[error("{argument}: the device pointer is null")]
    Null {
        /// The argument.
        argument: &'static str,
    },
    /// An address that no element can have, or that the forced kernel cannot read.
    #[error("{argument}: address {address:#x} or a stride is not a multiple of {required} bytes")]
    Misaligned {
        /// The argument.
        argument: &'static str,
        /// Its address.
        address: u64,
        /// The alignment asked for.
        required: usize,
    },
    /// A kernel that was asked for by name and cannot run this problem here.
    #[error("{kernel} cannot run here: {reason}")]
    Refused {
        /// The kernel.
        kernel: &'static str,
        /// Why, as a sentence.
        reason: Reason,
    },
    /// The emulator found a fault in a kernel: a defect of the kernel, not of the caller.
    #[error("the emulator stopped {kernel}: {fault}")]
    Emulator {
        /// The PTX symbol.
        kernel: &'static str,
        /// What it found, with the kernel's line.
        fault: Box<cuda_std::emulator::Fault>,
    },
    /// A switch in the environment that has no meaning.
    #[error("{name}={value:?}: expected {expected}")]
    Environment {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it can be.
        expected: &'static str,
    },
    /// The chunked path's scratch is too small, or cannot be had while the stream is being captured.
    #[error("scratch: {need} bytes needed, {have} given{}", if *capturing { "; the stream is being captured, so give a workspace" } else { "" })]
    Scratch {
        /// Bytes that the call needs.
        need: usize,
        /// Bytes that there are.
        have: usize,
        /// Whether nothing can be allocated since the stream is being captured.
        capturing: bool,
    },
    /// Everything of the CUDA backend.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(Box<crate::cuda::CudaError>),
}

#[cfg(feature = "cuda")]
impl From<crate::cuda::CudaError> for Error {
    fn from(error: crate::cuda::CudaError) -> Self {
        Self::Cuda(Box::new(error))
    }
}

impl Error {
    /// An [`Error::Shape`].
    pub(crate) fn shape(argument: &'static str, expected: impl Into<String>, got: impl ToString) -> Self {
        Self::Shape { argument, expected: expected.into(), got: got.to_string() }
    }
}

/// Why a kernel was chosen or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// It is the first choice for this problem and device.
    #[error("first choice")]
    Selected,
    /// It was asked for by name.
    #[error("asked for by name")]
    Forced,
    /// The device is too old for it.
    #[error("compute capability {}.{} is below the {}.{} it needs", have / 10, have % 10, need / 10, need % 10)]
    Capability {
        /// The device's capability, times ten.
        have: u32,
        /// The kernel's.
        need: u32,
    },
    /// It is for cards of another compute capability alone.
    #[error("compute capability {}.{}; it is for {}.{} alone", have / 10, have % 10, only / 10, only % 10)]
    OtherCapability {
        /// The device's capability, times ten.
        have: u32,
        /// The kernel's.
        only: u32,
    },
    /// It moves 16 bytes at a time, and this argument is not aligned to them.
    #[error("{argument} has an address or a stride that is not a multiple of 16 bytes")]
    Unaligned {
        /// The argument.
        argument: &'static str,
    },
    /// The loaded PTX file does not have it: the driver is too old for the one that does.
    #[error("not in the PTX that was loaded for this device")]
    NotLoaded,
    /// The policy rules it out.
    #[error("{kernel} is switched off")]
    SwitchedOff {
        /// The kernel.
        kernel: &'static str,
    },
    /// Too few tokens to be worth it.
    #[error("{tokens} tokens; from {min} on it is faster")]
    FewTokens {
        /// The problem's tokens.
        tokens: usize,
        /// The policy's threshold.
        min: usize,
    },
    /// Its blocks would not all run at once.
    #[error("{need} blocks, each of which walks every chunk, on {have} multiprocessors")]
    FewMultiprocessors {
        /// The card's multiprocessors.
        have: u32,
        /// The blocks.
        need: u32,
    },
    /// A block needs more shared memory than the card gives.
    #[error("{need} bytes of shared memory a block, the card gives {have}")]
    SharedMemory {
        /// The card's opt-in limit.
        have: u32,
        /// The kernel's need.
        need: u32,
    },
    /// Not even one chunk fits in the scratch that the policy allows.
    #[error("{need} bytes of scratch for one chunk, the policy allows {limit}")]
    ScratchLimit {
        /// Bytes for one chunk.
        need: usize,
        /// The policy's limit.
        limit: usize,
    },
    /// Its scratch could not be allocated.
    #[error("{need} bytes of scratch could not be allocated")]
    ScratchAllocation {
        /// Bytes that were asked for.
        need: usize,
    },
    /// It is compiled for other numbers of value heads per key head.
    #[error("{ratio} value heads per key head; it is compiled for 1 to {most}")]
    HeadRatio {
        /// The problem's ratio.
        ratio: usize,
        /// The largest there is an entry for.
        most: usize,
    },
}
