//! A stream of the caller.
use core::ffi::c_void;

/// A CUstream, borrowed: never synchronised, never destroyed by this library. Also the two handles without an object.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(*mut c_void);

// SAFETY: a handle; the driver's calls on streams may come from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// The legacy default stream.
    pub const LEGACY: Self = Self(core::ptr::null_mut());
    /// The per-thread default stream, another one in every host thread.
    pub const PER_THREAD: Self = Self(core::ptr::without_provenance_mut(2));

    /// A stream that another library made.
    ///
    /// # Safety
    /// It is a live CUstream of the context that the [`Gdn`](super::Gdn) was made for, until the last call with it has
    /// returned.
    #[must_use]
    pub const unsafe fn from_raw(cu_stream: *mut c_void) -> Self {
        Self(cu_stream)
    }

    /// The CUstream.
    #[must_use]
    pub const fn as_raw(self) -> *mut c_void {
        self.0
    }
}

impl From<&cust::stream::Stream> for Stream {
    fn from(stream: &cust::stream::Stream) -> Self {
        Self(stream.as_inner().cast())
    }
}
