//! Device memory for the chunked path between its kernels: the device's own, kept from call to call, or the caller's.
use super::error::{CudaError, DriverError};
use super::raw::{self, check};
use super::stream::Stream;
use crate::error::{Error, Reason, Result};
use core::ffi::c_int;
use cust::sys::CUevent;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Where a call's scratch comes from.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Scratch<'a> {
    /// The device's own: allocated on first use, kept, grown when a call needs more. Calls on different streams wait for each
    /// other through an event. Not while a stream is being captured: a replay could run beside another call.
    #[default]
    Device,
    /// The caller's memory, on 16 bytes, free for the call until its stream has passed it.
    Borrowed {
        /// Its address.
        pointer: u64,
        /// Its bytes.
        bytes: usize,
    },
    /// One that [`Gdn::workspace`](super::Gdn::workspace) made: one per captured graph or per concurrent stream.
    Workspace(&'a mut Workspace),
}

/// Device memory that its owner gives to one call after another, on one stream or in one captured graph, which it must
/// outlive.
#[derive(Debug)]
pub struct Workspace {
    pub(super) memory: Memory,
    /// Frees with the context current, and keeps it.
    pub(super) device: std::sync::Arc<super::device::Device>,
}

impl Workspace {
    /// One without memory.
    pub(super) fn none(gdn: &super::Gdn) -> Self {
        Self { memory: Memory::NONE, device: std::sync::Arc::clone(&gdn.device) }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            self.memory.free();
        }
    }
}

/// A device allocation. Its owner frees it with the context current.
#[derive(Debug)]
pub(super) struct Memory {
    pub pointer: u64,
    pub bytes: usize,
}

impl Memory {
    const NONE: Self = Self { pointer: 0, bytes: 0 };

    /// `bytes` of the current context's memory.
    pub fn allocate(bytes: usize) -> Result<Self, DriverError> {
        let mut pointer = 0;
        // SAFETY: `pointer` is written; freed in `free`.
        check("cuMemAlloc", unsafe { raw::cuMemAlloc(&raw mut pointer, bytes.max(1)) })?;
        Ok(Self { pointer, bytes })
    }

    pub fn free(&mut self) {
        if self.pointer != 0 {
            // SAFETY: allocated in `allocate`, freed once. The driver waits for work that uses it.
            let _ = unsafe { raw::cuMemFree(self.pointer) };
            *self = Self::NONE;
        }
    }
}

/// The device's own scratch.
#[derive(Debug)]
pub(super) struct DeviceScratch(Mutex<Held>);

#[derive(Debug)]
struct Held {
    memory: Memory,
    /// Recorded after the last use.
    event: CUevent,
    last: Option<Key>,
}

// SAFETY: the event is a handle that any thread may use, one at a time under the mutex.
unsafe impl Send for Held {}

/// A stream as an order of work: the per-thread handle is another stream in every thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key(Stream, Option<ThreadId>);

impl Key {
    fn of(stream: Stream) -> Self {
        Self(stream, (stream == Stream::PER_THREAD).then(|| std::thread::current().id()))
    }
}

impl DeviceScratch {
    pub const fn new() -> Self {
        Self(Mutex::new(Held { memory: Memory::NONE, event: core::ptr::null_mut(), last: None }))
    }

    /// Takes at least `bytes` for work on `stream`, until the guard's `release`. The context is current.
    ///
    /// # Errors
    /// [`Error::Scratch`] while the stream is being captured; [`Error::Refused`] with [`Reason::ScratchAllocation`] where
    /// the memory cannot be had: what was held before is still there then.
    pub fn take(&self, bytes: usize, stream: Stream) -> Result<Taken<'_>> {
        if is_capturing(stream)? {
            return Err(Error::Scratch { need: bytes, have: 0, capturing: true });
        }
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.grow(bytes)?;
        let key = Key::of(stream);
        if held.last.is_some_and(|last| last != key) {
            // SAFETY: both handles are alive; the event was recorded after the last use.
            check("cuStreamWaitEvent", unsafe { raw::cuStreamWaitEvent(stream.as_raw().cast(), held.event, 0) })
                .map_err(CudaError::from)?;
        }
        Ok(Taken { pointer: held.memory.pointer, held, key })
    }

    /// Makes sure that `take` of `bytes` will not allocate; gives what is held.
    pub fn reserve(&self, bytes: usize) -> Result<usize> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.grow(bytes)?;
        Ok(held.memory.bytes)
    }

    /// Frees everything. The context is current.
    pub fn free(&mut self) {
        let held = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        held.memory.free();
        if !held.event.is_null() {
            // SAFETY: created in `grow`, destroyed once.
            let _ = unsafe { raw::cuEventDestroy(held.event) };
            held.event = core::ptr::null_mut();
        }
    }
}

impl Held {
    fn grow(&mut self, bytes: usize) -> Result<()> {
        if self.event.is_null() {
            // SAFETY: the event is written.
            check("cuEventCreate", unsafe { raw::cuEventCreate(&raw mut self.event, raw::EVENT_DISABLE_TIMING) })
                .map_err(CudaError::from)?;
        }
        if self.memory.bytes >= bytes {
            return Ok(());
        }
        let larger = Memory::allocate(bytes).map_err(|error| match error.code {
            raw::OUT_OF_MEMORY => {
                Error::Refused { kernel: "chunked", reason: Reason::ScratchAllocation { need: bytes } }
            }
            _ => CudaError::from(error).into(),
        })?;
        // Work that still uses the smaller one has to pass first.
        if self.last.is_some() {
            // SAFETY: the event was recorded after the last use.
            check("cuEventSynchronize", unsafe { raw::cuEventSynchronize(self.event) }).map_err(CudaError::from)?;
        }
        self.memory.free();
        self.memory = larger;
        self.last = None;
        Ok(())
    }
}

/// The device's scratch while a call enqueues its work.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub pointer: u64,
    held: MutexGuard<'a, Held>,
    key: Key,
}

impl Taken<'_> {
    /// Marks the end of the call's work on the stream.
    pub fn release(mut self) -> Result<(), CudaError> {
        let Key(stream, _) = self.key;
        // SAFETY: both handles are alive.
        check("cuEventRecord", unsafe { raw::cuEventRecord(self.held.event, stream.as_raw().cast()) })?;
        self.held.last = Some(self.key);
        Ok(())
    }
}

pub(super) fn is_capturing(stream: Stream) -> Result<bool, CudaError> {
    let mut status: c_int = 0;
    // SAFETY: `status` is written.
    check("cuStreamIsCapturing", unsafe { raw::cuStreamIsCapturing(stream.as_raw().cast(), &raw mut status) })?;
    Ok(status != 0)
}
