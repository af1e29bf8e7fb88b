//! What can go wrong, by cause. Messages name the argument, its value, the limit, and the cure where one is known.
#![forbid(unsafe_code)]
use crate::dtype::Dtype;

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
    /// An element type that the argument cannot have.
    #[error("{argument}: {got} is not supported: {}", if expected[0] == expected[1] { format!("it is {}, as q is", expected[0]) } else { format!("it is {}, as q is, or {}", expected[0], expected[1]) })]
    Dtype {
        /// The argument.
        argument: &'static str,
        /// What it has.
        got: Dtype,
        /// What it could have.
        expected: [Dtype; 2],
    },
    /// More tokens than [`decode`](crate::cpu::decode) and checkpoints of every token take.
    #[error(
        "{tokens} tokens a sequence: decode and checkpoints of every token take at most {most}; prefill takes any number"
    )]
    DecodeTokens {
        /// Of the longest sequence.
        tokens: usize,
        /// The limit.
        most: usize,
    },
    /// A slot that the pool does not have.
    #[error("{argument}[{row}] = {index} is outside the pool of {slots} slots")]
    Slot {
        /// The table.
        argument: &'static str,
        /// Where in it.
        row: usize,
        /// The slot.
        index: i64,
        /// Slots of the pool.
        slots: usize,
    },
    /// A slot that two sequences would use at once, at least one of them to write.
    #[error("slot {slot} is written by sequence {first} and used by sequence {second}")]
    SharedSlot {
        /// The slot.
        slot: usize,
        /// A sequence that writes it.
        first: usize,
        /// The other.
        second: usize,
    },
    /// A gate that its convention does not have: most likely the caller's is another one.
    #[error("gate of token {token}, value head {head} = {value}: expected {expected}")]
    Gate {
        /// The token, on the token axis.
        token: usize,
        /// The value head.
        head: usize,
        /// The gate.
        value: f32,
        /// What the convention has.
        expected: &'static str,
    },
    /// Every slot of a pool is in use.
    #[error("no free state slot: all {capacity} are in use")]
    PoolExhausted {
        /// Slots of the pool.
        capacity: usize,
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
    /// Too few multiprocessors for its blocks, each of which walks the whole prompt.
    #[error("{have} multiprocessors; from {need} on it is faster")]
    FewMultiprocessors {
        /// The card's multiprocessors.
        have: u32,
        /// The fewest that it is chosen on.
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
    /// It is for f32 tensors.
    #[error("{argument} is {dtype}; it takes f32")]
    Dtype {
        /// The argument.
        argument: &'static str,
        /// Its type.
        dtype: Dtype,
    },
    /// It takes q and k as they are.
    #[error("it does not normalise q and k")]
    Norm,
    /// It takes gates of another kind.
    #[error("{gates} gates; it takes {takes}")]
    Gates {
        /// The call's.
        gates: &'static str,
        /// The kernel's.
        takes: &'static str,
    },
    /// It is for states whose columns are contiguous, and whose initial and final layouts are one.
    #[error("the layout of {argument}: it takes states with contiguous columns, read and written in one layout")]
    Layout {
        /// The argument.
        argument: &'static str,
    },
    /// It runs one sequence after the other, and the host does not know their slots.
    #[error("slots of states are named by {argument}, which only the device knows")]
    Indices {
        /// The argument.
        argument: &'static str,
    },
    /// It keeps no state but the last.
    #[error("it keeps no state after every token")]
    Checkpoints,
    /// A launch has no room for so many blocks.
    #[error("{sequences} sequences; a launch has blocks for {most}")]
    Batch {
        /// Sequences of the call.
        sequences: usize,
        /// The most.
        most: usize,
    },
    /// Without scratch there is no place for a table of where sequences start.
    #[error("sequences of different lengths need a table on the device, and so scratch: prefill takes them")]
    Lengths,
    /// One launch for all short sequences is faster than one for each.
    #[error("{sequences} sequences of up to {tokens} tokens are faster in one launch")]
    ShortSequences {
        /// Sequences of the call.
        sequences: usize,
        /// Tokens of the longest.
        tokens: usize,
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
