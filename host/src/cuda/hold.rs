//! Multiprocessors held by a waiting kernel, so that what is measured finds as few as a smaller card has.
use super::device::Device;
use super::error::{CudaError, DriverError};
use super::stream::Stream;
use crate::error::Result;
use cuda_std::Global;
use cuda_std::kernel::Entry;
use cust::memory::DeviceBuffer;
use cust::stream::StreamFlags;
use kernels_gpu::kernels::hold::{Args, KERNEL};
use std::time::Duration;

/// After this the kernel ends by itself. No measured call takes so long.
const MOST: Duration = Duration::from_secs(4);

/// What a launch on an idle device takes to arrive everywhere, many times over.
const ARRIVAL: Duration = Duration::from_millis(1);

/// The flag and the streams of the waiting kernel.
#[derive(Debug)]
pub(super) struct Hold {
    released: DeviceBuffer<u32>,
    waiting: cust::stream::Stream,
    /// Another one, since the kernel keeps its own busy.
    releasing: cust::stream::Stream,
}

impl Hold {
    /// Lets the kernel have all the shared memory of a block. The device's context is current.
    pub fn new(device: &Device) -> Result<Self, DriverError> {
        let stream = || cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None);
        device.allow_shared_bytes(KERNEL.entries[0].symbol, device.facts.shared_bytes_optin)?;
        Ok(Self { released: DeviceBuffer::zeroed(1)?, waiting: stream()?, releasing: stream()? })
    }

    /// Does `work` while so many multiprocessors are held. The device is idle before, and its context current. Memory
    /// that `work` allocates on the device would wait for the kernel's end.
    ///
    /// # Errors
    /// Those of `work`; [`CudaError::HeldTooLong`] where the kernel did not wait for its end.
    pub fn during<T>(&mut self, device: &Device, multiprocessors: u32, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if multiprocessors == 0 {
            return work();
        }
        self.set(0)?;
        let args = Args {
            released: Global::new(self.released.as_device_ptr().as_raw() as *const u32),
            most_nanoseconds: MOST.as_nanos() as usize,
        };
        let Entry { symbol, threads, body, .. } = KERNEL.entries[0];
        let entry = Entry { symbol, threads, body, shared_bytes: device.facts.shared_bytes_optin };
        let started = std::time::Instant::now();
        // SAFETY: types: the entry takes `Args`. Lengths: one word. Lifetime: the stream is synchronised below, whatever
        // `work` does.
        unsafe { device.launch(&entry, [multiprocessors, 1], &args, Stream::from(&self.waiting))? };
        std::thread::sleep(ARRIVAL);
        let done = work();
        let held = started.elapsed();
        self.set(1)?;
        device.synchronize(Stream::from(&self.waiting))?;
        let done = done?;
        if held >= MOST { Err(CudaError::HeldTooLong { most: MOST }.into()) } else { Ok(done) }
    }

    /// Sets the flag and waits until it is set.
    fn set(&mut self, released: u32) -> Result<(), CudaError> {
        // SAFETY: types: a word of any bits. Lengths: the buffer's own. Lifetime: synchronised at once.
        unsafe { self.released.set_32_async(released, &self.releasing) }.map_err(DriverError::from)?;
        self.releasing.synchronize().map_err(DriverError::from)?;
        Ok(())
    }
}
