//! The recurrence by a kernel on device memory of our own, while candle's tensors are on the CPU: the inputs go to the device,
//! the output comes back, the states stay.
use crate::recurrence::{Inputs, Recurrence};
use candle_core::{Device, Error, Result, Tensor};
use cust::context::{Context, CurrentContext};
use cust::error::CudaResult;
use cust::event::{Event, EventFlags};
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::StreamFlags;
use host::cuda::{Call, CudaError, DriverError, Gates, Gdn, StatePool, Stream, View};
use host::{Dtype, Heads, Kernel, Slot, StateLayout, Strides};
use std::rc::Rc;
use std::time::Duration;

/// Elements that are written before each timed call, 512 MB: more than a second-level cache holds, and it takes longer than
/// enqueueing the call.
const SCRUB: usize = 128 << 20;

/// One GPU: the library's handle, and what is ours.
#[derive(Debug)]
pub struct Gpu {
    gdn: Gdn,
    stream: cust::stream::Stream,
    start: Event,
    end: Event,
    scrub: DeviceBuffer<u32>,
    /// The last to go.
    _context: Context,
}

impl Gpu {
    /// The first one. It is this thread's until the end.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open() -> host::Result<Rc<Self>> {
        let gdn = Gdn::new(0)?;
        let gpu = Self::around(gdn).map_err(|error| CudaError::from(DriverError::from(error)))?;
        Ok(Rc::new(gpu))
    }

    fn around(gdn: Gdn) -> CudaResult<Self> {
        let context = Context::new(cust::device::Device::get_device(0)?)?;
        CurrentContext::set_current(&context)?;
        Ok(Self {
            gdn,
            // Not one that passes the default stream by: that is where copies are made.
            stream: cust::stream::Stream::new(StreamFlags::DEFAULT, None)?,
            start: Event::new(EventFlags::DEFAULT)?,
            end: Event::new(EventFlags::DEFAULT)?,
            scrub: DeviceBuffer::zeroed(SCRUB)?,
            _context: context,
        })
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.gdn.facts().name
    }

    fn stream(&self) -> Stream {
        Stream::from(&self.stream)
    }
}

/// The states of all layers on the device, and room for a prompt.
#[derive(Debug)]
pub struct OnDevice {
    prefill: Kernel,
    pool: StatePool,
    /// The pool's only one.
    slot: Option<Slot>,
    rows: Option<Rows>,
    elapsed: Duration,
    /// After what is allocated on it.
    gpu: Rc<Gpu>,
}

impl OnDevice {
    /// For so many layers; prompts go by `prefill`, single tokens by [`Kernel::Decode`].
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn new(gpu: &Rc<Gpu>, heads: &Heads, layers: usize, prefill: Kernel) -> Result<Self> {
        let pool = StatePool::new(&gpu.gdn, heads, StateLayout::key_major(heads), layers, 1).map_err(Error::wrap)?;
        Ok(Self { prefill, pool, slot: None, rows: None, elapsed: Duration::ZERO, gpu: Rc::clone(gpu) })
    }

    /// Room for so many tokens.
    fn rows(&mut self, heads: &Heads, tokens: usize) -> Result<&mut Rows> {
        match &mut self.rows {
            Some(rows) if rows.tokens >= tokens => {}
            rows => *rows = Some(Rows::new(heads, tokens).map_err(Error::wrap)?),
        }
        self.rows.as_mut().ok_or_else(|| Error::msg("no rows"))
    }
}

impl Recurrence for OnDevice {
    fn name(&self) -> String {
        format!("cuda {}", self.prefill.name())
    }

    fn reset(&mut self) -> Result<()> {
        self.elapsed = Duration::ZERO;
        drop(self.slot.take());
        // SAFETY: the stream lives as long as the GPU.
        self.slot = Some(unsafe { self.pool.acquire(self.gpu.stream()) }.map_err(Error::wrap)?);
        Ok(())
    }

    fn run(&mut self, layer: usize, inputs: &Inputs<'_>) -> Result<Tensor> {
        let (heads, tokens) = (inputs.heads, inputs.q.dim(0)?);
        let (prefill, gpu) = (self.prefill, Rc::clone(&self.gpu));
        let state = self.pool.layer(layer);
        let rows = self.rows(&heads, tokens)?;
        rows.upload(inputs)?;
        let call = rows.call(heads, tokens).state(state);
        // SAFETY: types: any bits are u32s. Lengths: the buffer's own. Lifetime: the stream is synchronised below.
        unsafe { gpu.scrub.index(..).set_32_async(0, &gpu.stream) }.map_err(Error::wrap)?;
        gpu.start.record(&gpu.stream).map_err(Error::wrap)?;
        // SAFETY: types: f32 buffers. Lengths: they hold as many tokens, and the pool has a state of these heads in each
        // layer. Lifetime: the stream is synchronised below; nothing else uses them.
        let launch = unsafe {
            match tokens {
                1 => gpu.gdn.decode(&call, gpu.stream()),
                _ => gpu.gdn.prefill_by(&call, prefill, gpu.stream()),
            }
        };
        launch.map_err(Error::wrap)?;
        gpu.end.record(&gpu.stream).map_err(Error::wrap)?;
        gpu.gdn.synchronize(gpu.stream()).map_err(Error::wrap)?;
        let elapsed = gpu.end.elapsed(&gpu.start).map_err(Error::wrap)?;
        let out = rows.download(tokens * heads.num_v_heads * heads.head_v_dim).map_err(Error::wrap)?;
        self.elapsed += elapsed;
        Tensor::from_vec(out, (tokens, heads.num_v_heads, heads.head_v_dim), &Device::Cpu)
    }

    fn elapsed(&self) -> Duration {
        self.elapsed
    }
}

/// The tensors of a call in device memory, dense.
#[derive(Debug)]
struct Rows {
    tokens: usize,
    q: DeviceBuffer<f32>,
    k: DeviceBuffer<f32>,
    v: DeviceBuffer<f32>,
    g: DeviceBuffer<f32>,
    beta: DeviceBuffer<f32>,
    out: DeviceBuffer<f32>,
}

impl Rows {
    fn new(heads: &Heads, tokens: usize) -> CudaResult<Self> {
        let (keys, values) = (heads.num_k_heads * heads.head_k_dim, heads.num_v_heads * heads.head_v_dim);
        Ok(Self {
            tokens,
            q: DeviceBuffer::zeroed(tokens * keys)?,
            k: DeviceBuffer::zeroed(tokens * keys)?,
            v: DeviceBuffer::zeroed(tokens * values)?,
            g: DeviceBuffer::zeroed(tokens * heads.num_v_heads)?,
            beta: DeviceBuffer::zeroed(tokens * heads.num_v_heads)?,
            out: DeviceBuffer::zeroed(tokens * values)?,
        })
    }

    fn upload(&mut self, inputs: &Inputs<'_>) -> Result<()> {
        let Self { q, k, v, g, beta, .. } = self;
        let pairs = [(q, inputs.q), (k, inputs.k), (v, inputs.v), (g, inputs.g), (beta, inputs.beta)];
        pairs.into_iter().try_for_each(|(buffer, tensor)| {
            let data = tensor.flatten_all()?.to_vec1::<f32>()?;
            buffer.index(..data.len()).copy_from(&data).map_err(Error::wrap)
        })
    }

    /// The first `tokens` of them.
    fn call(&self, heads: Heads, tokens: usize) -> Call<'static> {
        let view = |buffer: &DeviceBuffer<f32>, heads, dim| {
            View::new(buffer.as_device_ptr().as_raw(), Dtype::F32, Strides::dense(heads, dim))
        };
        let scalars = |buffer| view(buffer, heads.num_v_heads, 1);
        Call::new(
            heads,
            tokens,
            view(&self.q, heads.num_k_heads, heads.head_k_dim),
            view(&self.k, heads.num_k_heads, heads.head_k_dim),
            view(&self.v, heads.num_v_heads, heads.head_v_dim),
            Gates::Log { g: scalars(&self.g), beta: scalars(&self.beta) },
            view(&self.out, heads.num_v_heads, heads.head_v_dim),
        )
    }

    fn download(&self, count: usize) -> CudaResult<Vec<f32>> {
        let mut out = vec![0.0; count];
        self.out.index(..count).copy_to(&mut out)?;
        Ok(out)
    }
}
