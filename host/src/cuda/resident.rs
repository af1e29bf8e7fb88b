//! Inputs that stay on the device, for measurements: one call at a time, between two events and on a cold cache.
use super::call::Call;
use super::error::{CudaError, DriverError};
use super::hold::Hold;
use super::tensors::{Gates, State, View};
use super::{Gdn, Stream};
use crate::dispatch::Launch;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::heads::Heads;
use crate::inputs::Inputs;
use crate::kernel::Kernel;
use crate::layout::{StateLayout, Strides};
use cust::context::CurrentContext;
use cust::device::DeviceAttribute;
use cust::event::{Event, EventFlags};
use cust::memory::{CopyDestination, DeviceBuffer, DeviceSlice};
use cust::stream::StreamFlags;

/// How many times the second-level cache is written over between samples. Its replacement is no secret, but it is not
/// documented either; and the time that this takes hides that of enqueueing what is measured.
const SCRUB_FACTOR: usize = 4;
/// At least so much is written, in bytes.
const LEAST_SCRUB: usize = 128 << 20;

/// Inputs and outputs of calls that are measured, with a stream of their own.
#[derive(Debug)]
pub struct Resident {
    gdn: Gdn,
    bus_address: String,
    /// None only while it is being dropped.
    held: Option<Held>,
}

/// What needs the device's context when it goes.
#[derive(Debug)]
struct Held {
    buffers: Buffers,
    hold: Hold,
}

/// The calls' memory, stream and events.
#[derive(Debug)]
struct Buffers {
    heads: Heads,
    tokens: usize,
    scale: f32,
    q: DeviceBuffer<f32>,
    k: DeviceBuffer<f32>,
    v: DeviceBuffer<f32>,
    g: DeviceBuffer<f32>,
    beta: DeviceBuffer<f32>,
    initial_state: DeviceBuffer<f32>,
    /// Another one than the initial state, so that every call does the same work.
    final_state: DeviceBuffer<f32>,
    out: DeviceBuffer<f32>,
    scrub: DeviceBuffer<u32>,
    start: Event,
    end: Event,
    stream: cust::stream::Stream,
}

impl Gdn {
    /// Copies `inputs` to the device and keeps them there, with room for their outputs.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda): mostly memory that is not there.
    pub fn resident(&self, inputs: &Inputs) -> Result<Resident> {
        let _current = self.device.current()?;
        let bus_address = bus_address().map_err(CudaError::from)?;
        let buffers = Buffers::new(inputs).map_err(CudaError::from)?;
        let hold = Hold::new(&self.device).map_err(CudaError::from)?;
        // Copies of few bytes return before they have arrived, and the stream of the calls does not wait for them by itself.
        self.synchronize(Stream::LEGACY)?;
        Ok(Resident { gdn: self.clone(), bus_address, held: Some(Held { buffers, hold }) })
    }
}

/// As other tools name the current device: domain, bus, device and function, in hexadecimal.
fn bus_address() -> Result<String, DriverError> {
    let device = CurrentContext::get_device()?;
    let [domain, bus, slot] = [DeviceAttribute::PciDomainId, DeviceAttribute::PciBusId, DeviceAttribute::PciDeviceId]
        .map(|attribute| device.get_attribute(attribute));
    Ok(format!("{:08x}:{:02x}:{:02x}.0", domain?, bus?, slot?))
}

impl Resident {
    /// Where the device is on the bus: the name that `nvidia-smi -i` takes.
    #[must_use]
    pub fn bus_address(&self) -> &str {
        &self.bus_address
    }

    /// Microseconds on the device that `kernel` takes for the first `tokens` tokens, on a cache that holds none of them
    /// and with so many of the device's multiprocessors, the others being held. Call [`Resident::results`] first: what a
    /// path allocates in its first call would wait for those.
    ///
    /// # Errors
    /// As [`Gdn::prefill_by`]; [`Error::Cuda`](crate::Error::Cuda) where it failed on the way.
    ///
    /// # Panics
    /// If `tokens` is above what the inputs hold.
    pub fn time(&mut self, kernel: Kernel, tokens: usize, multiprocessors: u32) -> Result<f64> {
        let _current = self.gdn.device.current()?;
        let held = self.held.as_mut().expect("held until it is dropped");
        let others = self.gdn.facts().multiprocessors.saturating_sub(multiprocessors);
        held.hold.during(&self.gdn.device, others, || held.buffers.time(&self.gdn, kernel, tokens))
    }

    /// What `kernel` makes of the first `tokens` tokens: `out` `[tokens, HV, V]` and the state after them,
    /// `[HV][K][V]`. On the device both are NaN before, so that what is not written shows.
    ///
    /// # Errors
    /// As [`Resident::time`].
    ///
    /// # Panics
    /// If `tokens` is above what the inputs hold, or `out` or `state` have another length.
    pub fn results(&mut self, kernel: Kernel, tokens: usize, out: &mut [f32], state: &mut [f32]) -> Result<Launch> {
        let _current = self.gdn.device.current()?;
        let held = &mut self.held.as_mut().expect("held until it is dropped").buffers;
        let driver = |error| CudaError::from(DriverError::from(error));
        for buffer in [&mut held.out, &mut held.final_state] {
            // SAFETY: types: any bits are f32s. Lengths: the buffer's own. Lifetime: as in `time`.
            unsafe { buffer.set_32_async(f32::NAN.to_bits(), &held.stream) }.map_err(driver)?;
        }
        let launch = held.enqueue(&self.gdn, kernel, tokens)?;
        self.gdn.synchronize(Stream::from(&held.stream))?;
        let on_device: DeviceSlice<f32> = held.out.index(..out.len());
        on_device.copy_to(out).map_err(driver)?;
        held.final_state.copy_to(state).map_err(driver)?;
        Ok(launch)
    }
}

impl Buffers {
    fn new(inputs: &Inputs) -> Result<Self, DriverError> {
        let cache = CurrentContext::get_device()?.get_attribute(DeviceAttribute::L2CacheSize)?;
        let scrub_bytes = (SCRUB_FACTOR * usize::try_from(cache).unwrap_or(0)).max(LEAST_SCRUB);
        let upload = |slice: &[f32]| DeviceBuffer::from_slice(slice);
        Ok(Self {
            heads: inputs.heads,
            tokens: inputs.tokens,
            scale: inputs.scale,
            q: upload(&inputs.q)?,
            k: upload(&inputs.k)?,
            v: upload(&inputs.v)?,
            g: upload(&inputs.g)?,
            beta: upload(&inputs.beta)?,
            initial_state: upload(&inputs.state)?,
            final_state: DeviceBuffer::zeroed(inputs.state_len())?,
            out: DeviceBuffer::zeroed(inputs.out_len(inputs.tokens))?,
            scrub: DeviceBuffer::zeroed(scrub_bytes / size_of::<u32>())?,
            start: Event::new(EventFlags::DEFAULT)?,
            end: Event::new(EventFlags::DEFAULT)?,
            stream: cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None)?,
        })
    }

    /// Microseconds of one call on the device.
    fn time(&mut self, gdn: &Gdn, kernel: Kernel, tokens: usize) -> Result<f64> {
        let driver = |error| CudaError::from(DriverError::from(error));
        // SAFETY: types: any bits are u32s. Lengths: the buffer's own. Lifetime: the stream is synchronised below, and
        // by whoever comes next if that is not reached: all work on the buffers is on this stream.
        unsafe { self.scrub.set_32_async(0, &self.stream) }.map_err(driver)?;
        self.start.record(&self.stream).map_err(driver)?;
        self.enqueue(gdn, kernel, tokens)?;
        self.end.record(&self.stream).map_err(driver)?;
        gdn.synchronize(Stream::from(&self.stream))?;
        let milliseconds = self.end.elapsed_time_f32(&self.start).map_err(driver)?;
        Ok(f64::from(milliseconds) * 1e3)
    }

    /// Enqueues one call on the stream.
    fn enqueue(&self, gdn: &Gdn, kernel: Kernel, tokens: usize) -> Result<Launch> {
        assert!(tokens <= self.tokens, "{tokens} of {} tokens", self.tokens);
        let heads = self.heads;
        let view = |buffer: &DeviceBuffer<f32>, heads, dim| {
            View::new(buffer.as_device_ptr().as_raw(), Dtype::F32, Strides::dense(heads, dim))
        };
        let state =
            |buffer: &DeviceBuffer<f32>| State::new(buffer.as_device_ptr().as_raw(), StateLayout::key_major(&heads), 1);
        let call = Call::new(
            heads,
            tokens,
            view(&self.q, heads.num_k_heads, heads.head_k_dim),
            view(&self.k, heads.num_k_heads, heads.head_k_dim),
            view(&self.v, heads.num_v_heads, heads.head_v_dim),
            Gates::Log { g: view(&self.g, heads.num_v_heads, 1), beta: view(&self.beta, heads.num_v_heads, 1) },
            view(&self.out, heads.num_v_heads, heads.head_v_dim),
        )
        .scale(self.scale)
        .initial_state(state(&self.initial_state))
        .final_state(state(&self.final_state));
        // SAFETY: types: f32 buffers. Lengths: those of `Inputs`, whose tensors are dense and hold as many tokens, as
        // asserted. Lifetime: the buffers go with `self`, after everything on the stream (`drop` of `Resident`).
        unsafe { gdn.prefill_by(&call, kernel, Stream::from(&self.stream)) }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // Without its context nothing can be freed, and then there is nobody left to want the memory.
        let Ok(_current) = self.gdn.device.current() else {
            core::mem::forget(self.held.take());
            return;
        };
        if let Some(held) = &self.held {
            let _ = self.gdn.synchronize(Stream::from(&held.buffers.stream));
        }
        drop(self.held.take());
    }
}
