//! What the emulator finds wrong with a kernel, each with the place in the kernel's source.
use std::fmt;
use std::panic::Location;

/// Where a thread of the launch stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The block's index in the grid.
    pub block: [u32; 2],
    /// The thread's index in its block.
    pub thread: u32,
    /// The word's call in the kernel's source.
    pub location: &'static Location<'static>,
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y] = self.block;
        write!(formatter, "block ({x}, {y}), thread {} at {}", self.thread, self.location)
    }
}

/// Another thread of the same block that had part in a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    /// The thread's index in its block.
    pub thread: u32,
    /// What it did, or where it waits. `None` where the emulator did not keep it.
    pub location: Option<&'static Location<'static>>,
}

impl fmt::Display for Other {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "thread {}", self.thread)?;
        match self.location {
            Some(location) => write!(formatter, " at {location}"),
            None => Ok(()),
        }
    }
}

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A load, or the source of an asynchronous copy.
    Read,
    /// A store, or the destination of an asynchronous copy.
    Write,
    /// A prefetch.
    Prefetch,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Prefetch => "prefetch",
        })
    }
}

/// Which memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The block's dynamic shared memory.
    Shared,
    /// The region of the launch's [`Memory`](super::Memory) that is nearest to the address.
    Global,
}

impl fmt::Display for Space {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Shared => "shared memory",
            Self::Global => "the nearest registered global memory",
        })
    }
}

/// What the 32 lanes of a warp do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// `warp_shuffle_xor`.
    ShuffleXor,
    /// `warp_shuffle_idx`.
    ShuffleIndex,
    /// `warp_shuffle_up`.
    ShuffleUp,
    /// `sync_warp`.
    Barrier,
    /// `warp_max`.
    Max,
    /// `mma_16x8x16`.
    Mma,
    /// `load_matrix_x4`.
    LoadMatrix,
    /// `load_matrix_x4_transposed`.
    LoadMatrixTransposed,
}

impl fmt::Display for Collective {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::ShuffleXor => "warp_shuffle_xor",
            Self::ShuffleIndex => "warp_shuffle_idx",
            Self::ShuffleUp => "warp_shuffle_up",
            Self::Barrier => "sync_warp",
            Self::Max => "warp_max",
            Self::Mma => "mma_16x8x16",
            Self::LoadMatrix => "load_matrix_x4",
            Self::LoadMatrixTransposed => "load_matrix_x4_transposed",
        })
    }
}

/// Why a launch stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The block's thread count is no multiple of 32 between 32 and 1024.
    #[error("a block of {threads} threads: it must be a multiple of 32 between 32 and 1024")]
    Threads {
        /// The count asked for.
        threads: u32,
    },
    /// The system gave no stack for a thread.
    #[error("no stack for an emulated thread")]
    Stack(#[source] std::io::Error),
    /// The kernel panicked: an assertion, an index out of bounds, an overflow.
    #[error(
        "block ({}, {}), thread {thread} panicked at {location}: {message}",
        block[0], block[1]
    )]
    Panicked {
        /// The block's index in the grid.
        block: [u32; 2],
        /// The thread's index in its block.
        thread: u32,
        /// File, line and column.
        location: String,
        /// The panic's message.
        message: String,
    },
    /// An access that does not lie inside shared memory or one registered region.
    #[error("{place}: {action} of {bytes} bytes at byte {offset} of {space}, which has {length} bytes")]
    OutOfBounds {
        /// The thread and the access.
        place: Place,
        /// How it touched the memory.
        action: Action,
        /// Which memory.
        space: Space,
        /// The access's length.
        bytes: usize,
        /// Its first byte, counted from the start of that memory.
        offset: isize,
        /// The memory's length.
        length: usize,
    },
    /// An address that is no multiple of what its access needs.
    #[error("{place}: {action} at {address:#x}, which is not aligned to {alignment} bytes")]
    Misaligned {
        /// The thread and the access.
        place: Place,
        /// How it touched the memory.
        action: Action,
        /// The address.
        address: usize,
        /// What it should be a multiple of.
        alignment: usize,
    },
    /// A write into a region that was registered for reading.
    #[error("{place}: write into global memory that the launch may only read")]
    ReadOnly {
        /// The thread and the write.
        place: Place,
    },
    /// A launch with less shared memory than the kernel lays over it.
    #[error("{place}: the kernel lays {needed} bytes over {available} bytes of shared memory")]
    SharedTooSmall {
        /// The thread and the call.
        place: Place,
        /// What the kernel wants.
        needed: usize,
        /// What the launch gives.
        available: usize,
    },
    /// Two threads touched a word with no barrier between them, one of them writing.
    #[error("{place}: {action} of a word that {other} {} with no barrier in between", past(*.other_action))]
    Race {
        /// The later access, as the emulator ran them.
        place: Place,
        /// What it did.
        action: Action,
        /// The earlier access.
        other: Other,
        /// What that one did.
        other_action: Action,
    },
    /// An access to the destination of an asynchronous copy that has not been waited for.
    #[error("{place}: {action} of bytes that an asynchronous copy has not delivered: {copy}")]
    Undelivered {
        /// The thread and the access.
        place: Place,
        /// What it did.
        action: Action,
        /// The copy.
        copy: Other,
    },
    /// A thread that exits while its asynchronous copies are under way.
    #[error("{place}: the thread exits without waiting for this asynchronous copy")]
    NeverWaitedFor {
        /// The thread and the copy.
        place: Place,
    },
    /// Threads that wait at different block barriers.
    #[error("{place}: sync_threads while {other} waits at a different one")]
    DivergentBarrier {
        /// The thread that came later.
        place: Place,
        /// One that waits.
        other: Other,
    },
    /// Threads that wait at a block barrier that others will never reach.
    #[error("{place}: sync_threads waits for ever, since thread {exited} has exited")]
    BarrierAfterExit {
        /// A thread that waits.
        place: Place,
        /// One that has exited.
        exited: u32,
    },
    /// Lanes of a warp at different collective operations.
    #[error("{place}: {collective} while lanes of the warp are at {other_collective}: {other}")]
    DivergentWarp {
        /// The lane that came later.
        place: Place,
        /// What it does.
        collective: Collective,
        /// A lane that waits.
        other: Other,
        /// What that one does.
        other_collective: Collective,
    },
    /// Lanes that wait at a collective operation that another lane will never reach.
    #[error("{place}: {collective} waits for ever for {missing}, which {}", missing_reason(*.missing))]
    MissingLane {
        /// A lane that waits.
        place: Place,
        /// What it waits in.
        collective: Collective,
        /// One that is not there. Its location is the block barrier where it waits; it has exited if there is none.
        missing: Other,
    },
    /// A shuffle's lane, mask or distance that is 32 or more.
    #[error("{place}: {collective} with the operand {operand}, which must be below 32")]
    LaneOperand {
        /// The lane.
        place: Place,
        /// Which shuffle.
        collective: Collective,
        /// Its operand.
        operand: u32,
    },
}

/// The action in a sentence about the past.
fn past(action: Action) -> &'static str {
    match action {
        Action::Read => "read",
        Action::Write => "wrote",
        Action::Prefetch => "prefetched",
    }
}

/// Why a lane does not come.
fn missing_reason(missing: Other) -> &'static str {
    match missing.location {
        Some(_) => "waits at that sync_threads",
        None => "has exited",
    }
}
