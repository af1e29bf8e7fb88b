//! Batches that stay on the device, for measurements: as [`super::Resident`], with a state for each sequence.
use super::call::Call;
use super::error::{CudaError, DriverError};
use super::tensors::{Gates, State, View};
use super::{Gdn, Stream};
use crate::dispatch::Launch;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::heads::Heads;
use crate::inputs::Inputs;
use crate::kernel::Kernel;
use crate::layout::{StateLayout, Strides};
use crate::sequences::Sequences;
use cust::event::{Event, EventFlags};
use cust::memory::{AsyncCopyDestination, CopyDestination, DeviceBuffer};
use cust::stream::StreamFlags;

/// Bytes that are written over between samples: more than any second-level cache has.
const SCRUB_BYTES: usize = 512 << 20;

/// Inputs and outputs of batches, every sequence starting from the same state, with a stream of their own.
#[derive(Debug)]
pub struct ResidentBatch {
    gdn: Gdn,
    /// None only while it is being dropped.
    held: Option<Buffers>,
}

/// Some sequences among those that are resident.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The first one's first token, and its state.
    pub first: [usize; 2],
    /// The sequences from there on.
    pub sequences: Sequences<'a>,
}

#[derive(Debug)]
struct Buffers {
    heads: Heads,
    tokens: usize,
    slots: usize,
    scale: f32,
    q: DeviceBuffer<f32>,
    k: DeviceBuffer<f32>,
    v: DeviceBuffer<f32>,
    g: DeviceBuffer<f32>,
    beta: DeviceBuffer<f32>,
    initial: DeviceBuffer<f32>,
    last: DeviceBuffer<f32>,
    out: DeviceBuffer<f32>,
    scrub: DeviceBuffer<u32>,
    start: Event,
    end: Event,
    stream: cust::stream::Stream,
}

fn driver(error: cust::error::CudaError) -> Error {
    CudaError::from(DriverError::from(error)).into()
}

impl Gdn {
    /// Copies `inputs`, the tokens of all sequences, to the device and keeps them there, with room for `slots` states before
    /// and after.
    ///
    /// # Errors
    /// [`Error::Cuda`]: mostly memory that is not there.
    pub fn resident_batch(&self, inputs: &Inputs, slots: usize) -> Result<ResidentBatch> {
        let _current = self.device.current()?;
        let buffers = Buffers::new(inputs, slots).map_err(CudaError::from)?;
        // Copies of few bytes return before they have arrived, and the stream of the calls does not wait for them by itself.
        self.synchronize(Stream::LEGACY)?;
        Ok(ResidentBatch { gdn: self.clone(), held: Some(buffers) })
    }
}

impl ResidentBatch {
    fn held(&mut self) -> &mut Buffers {
        self.held.as_mut().expect("held until it is dropped")
    }

    /// Microseconds on the device that `kernel` takes for `part`, on a cold cache.
    ///
    /// # Errors
    /// As [`Gdn::prefill_by`]; [`Error::Cuda`] where it failed on the way.
    pub fn time(&mut self, kernel: Kernel, part: Part<'_>) -> Result<f64> {
        let gdn = self.gdn.clone();
        let _current = gdn.device.current()?;
        let held = self.held();
        held.between(&gdn, |held| held.enqueue(&gdn, kernel, part).map(drop))
    }

    /// Microseconds that the driver takes to copy every initial state over the final ones, and the bytes read and written.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn time_copy(&mut self) -> Result<(f64, usize)> {
        let gdn = self.gdn.clone();
        let _current = gdn.device.current()?;
        let held = self.held();
        let bytes = 2 * held.initial.len() * size_of::<f32>();
        let microseconds = held.between(&gdn, |held| {
            // SAFETY: lengths: both are as long. Lifetime: the stream is synchronised in `between`, and in `drop`.
            unsafe { held.last.async_copy_from(&held.initial, &held.stream) }.map_err(driver)
        })?;
        Ok((microseconds, bytes))
    }

    /// What `kernel` makes of `part`: NaN where it writes nothing.
    ///
    /// # Errors
    /// As [`ResidentBatch::time`].
    pub fn run(&mut self, kernel: Kernel, part: Part<'_>) -> Result<Launch> {
        let gdn = self.gdn.clone();
        let _current = gdn.device.current()?;
        let held = self.held();
        for buffer in [&mut held.out, &mut held.last] {
            // SAFETY: types: any bits are f32s. Lengths: the buffer's own. Lifetime: the stream is synchronised below.
            unsafe { buffer.set_32_async(f32::NAN.to_bits(), &held.stream) }.map_err(driver)?;
        }
        let launch = held.enqueue(&gdn, kernel, part)?;
        gdn.synchronize(Stream::from(&held.stream))?;
        Ok(launch)
    }

    /// Outputs of the tokens from `first` on, as many as `out` has room for.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn read_out(&mut self, first: usize, out: &mut [f32]) -> Result<()> {
        let gdn = self.gdn.clone();
        let _current = gdn.device.current()?;
        let held = self.held();
        let first = first * held.heads.num_v_heads * held.heads.head_v_dim;
        held.out.index(first..first + out.len()).copy_to(out).map_err(driver)
    }

    /// The final state in `slot`.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn read_state(&mut self, slot: usize, state: &mut [f32]) -> Result<()> {
        let gdn = self.gdn.clone();
        let _current = gdn.device.current()?;
        let held = self.held();
        held.last.index(slot * state.len()..(slot + 1) * state.len()).copy_to(state).map_err(driver)
    }
}

impl Buffers {
    fn new(inputs: &Inputs, slots: usize) -> Result<Self, DriverError> {
        let upload = |slice: &[f32]| DeviceBuffer::from_slice(slice);
        let initial = DeviceBuffer::zeroed(slots * inputs.state_len())?;
        for slot in 0..slots {
            let range = slot * inputs.state_len()..(slot + 1) * inputs.state_len();
            initial.index(range).copy_from(&inputs.state[..])?;
        }
        Ok(Self {
            heads: inputs.heads,
            tokens: inputs.tokens,
            slots,
            scale: inputs.scale,
            q: upload(&inputs.q)?,
            k: upload(&inputs.k)?,
            v: upload(&inputs.v)?,
            g: upload(&inputs.g)?,
            beta: upload(&inputs.beta)?,
            last: DeviceBuffer::zeroed(initial.len())?,
            initial,
            out: DeviceBuffer::zeroed(inputs.out_len(inputs.tokens))?,
            scrub: DeviceBuffer::zeroed(SCRUB_BYTES / size_of::<u32>())?,
            start: Event::new(EventFlags::DEFAULT)?,
            end: Event::new(EventFlags::DEFAULT)?,
            stream: cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None)?,
        })
    }

    /// Microseconds on the device of what `work` enqueues, after the cache has been written over.
    fn between(&mut self, gdn: &Gdn, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<f64> {
        // SAFETY: types: any bits are u32s. Lengths: the buffer's own. Lifetime: the stream is synchronised below, and in
        // `drop` if that is not reached.
        unsafe { self.scrub.set_32_async(0, &self.stream) }.map_err(driver)?;
        self.start.record(&self.stream).map_err(driver)?;
        work(self)?;
        self.end.record(&self.stream).map_err(driver)?;
        gdn.synchronize(Stream::from(&self.stream))?;
        let milliseconds = self.end.elapsed_time_f32(&self.start).map_err(driver)?;
        Ok(f64::from(milliseconds) * 1e3)
    }

    fn enqueue(&self, gdn: &Gdn, kernel: Kernel, part: Part<'_>) -> Result<Launch> {
        let Part { first: [token, slot], sequences } = part;
        assert!(token + sequences.total() <= self.tokens, "more than {} tokens", self.tokens);
        assert!(slot + sequences.count() <= self.slots, "more than {} sequences", self.slots);
        let heads = self.heads;
        let tokens = sequences.longest();
        let view = |buffer: &DeviceBuffer<f32>, heads: usize, dim: usize| {
            let first = (token * heads * dim * size_of::<f32>()) as u64;
            let pointer = buffer.as_device_ptr().as_raw() + first;
            View::new(pointer, Dtype::F32, Strides::dense(heads, dim)).batch_stride(tokens * heads * dim)
        };
        let state = |buffer: &DeviceBuffer<f32>| {
            let first = (slot * heads.state_len() * size_of::<f32>()) as u64;
            let slots = self.slots - slot;
            State::new(buffer.as_device_ptr().as_raw() + first, StateLayout::key_major(&heads), slots)
        };
        let call = Call::new(
            heads,
            sequences,
            view(&self.q, heads.num_k_heads, heads.head_k_dim),
            view(&self.k, heads.num_k_heads, heads.head_k_dim),
            view(&self.v, heads.num_v_heads, heads.head_v_dim),
            Gates::Log { g: view(&self.g, heads.num_v_heads, 1), beta: view(&self.beta, heads.num_v_heads, 1) },
            view(&self.out, heads.num_v_heads, heads.head_v_dim),
        )
        .scale(self.scale)
        .initial_state(state(&self.initial))
        .final_state(state(&self.last));
        // SAFETY: types: f32 buffers. Lengths: dense tensors that hold as many tokens and states, as asserted. Lifetime: the
        // buffers go with `self`, after everything on the stream (`drop` of `ResidentBatch`).
        unsafe { gdn.prefill_by(&call, kernel, Stream::from(&self.stream)) }
    }
}

impl Drop for ResidentBatch {
    fn drop(&mut self) {
        // Without its context nothing can be freed, and then there is nobody left to want the memory.
        let Ok(_current) = self.gdn.device.current() else {
            core::mem::forget(self.held.take());
            return;
        };
        if let Some(held) = &self.held {
            let _ = self.gdn.synchronize(Stream::from(&held.stream));
        }
        drop(self.held.take());
    }
}
