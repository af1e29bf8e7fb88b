//! The recurrence on candle's tensors: an operation in place on the state.
#[cfg(feature = "cuda")]
mod on_gpu;

use crate::recurrence::{Inputs, Recurrence};
use candle_core::{CpuStorage, DType, Device, Error, InplaceOp1, Layout, Result, Storage, Tensor};
use host::cpu::Path;
use host::{Call, Gates, Heads, State, StateLayout, Strides, View, ViewMut, cpu};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// What takes prompts; single tokens always go token by token.
#[derive(Clone, Debug)]
pub enum Prefill {
    /// The CPU backend, for tensors on the CPU.
    Cpu(Path),
    /// A kernel, for tensors on the GPU.
    #[cfg(feature = "cuda")]
    Gpu(host::cuda::Gdn, host::Kernel),
}

/// The states of all layers as candle tensors, `[HV, 128, 128]`.
#[derive(Debug)]
pub struct OnCandle {
    prefill: Prefill,
    states: Vec<Tensor>,
    elapsed: Duration,
}

impl OnCandle {
    /// For so many layers, by `prefill`, on `device`.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn new(heads: &Heads, layers: usize, prefill: Prefill, device: &Device) -> Result<Self> {
        let shape = (heads.num_v_heads, heads.head_k_dim, heads.head_v_dim);
        let states = (0..layers).map(|_| Tensor::zeros(shape, DType::F32, device)).collect::<Result<_>>()?;
        Ok(Self { prefill, states, elapsed: Duration::ZERO })
    }
}

impl Recurrence for OnCandle {
    fn name(&self) -> String {
        match &self.prefill {
            Prefill::Cpu(path) => format!("cpu {}", path.name()),
            #[cfg(feature = "cuda")]
            Prefill::Gpu(_, kernel) => format!("cuda {}", kernel.name()),
        }
    }

    fn reset(&mut self) -> Result<()> {
        self.elapsed = Duration::ZERO;
        self.states.iter_mut().try_for_each(|state| {
            *state = state.zeros_like()?;
            Ok(())
        })
    }

    fn run(&mut self, layer: usize, inputs: &Inputs<'_>) -> Result<Tensor> {
        let state = &self.states[layer];
        let step = Step { inputs: *inputs, prefill: &self.prefill, out: RefCell::default() };
        state.device().synchronize()?;
        let start = Instant::now();
        state.inplace_op1(&step)?;
        state.device().synchronize()?;
        self.elapsed += start.elapsed();
        step.out.into_inner().ok_or_else(|| Error::msg("the operation was not run"))
    }

    fn elapsed(&self) -> Duration {
        self.elapsed
    }
}

/// One call, in place on a state.
struct Step<'a> {
    inputs: Inputs<'a>,
    prefill: &'a Prefill,
    /// An operation in place has no other way to give a tensor.
    out: RefCell<Option<Tensor>>,
}

impl InplaceOp1 for Step<'_> {
    fn name(&self) -> &'static str {
        "gated-delta-net"
    }

    fn cpu_fwd(&self, state: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(state) = state else {
            return Err(Error::msg("states are f32"));
        };
        #[cfg_attr(not(feature = "cuda"), expect(irrefutable_let_patterns, reason = "there is only one"))]
        let &Prefill::Cpu(path) = self.prefill else {
            return Err(Error::msg("the tensors are on the CPU"));
        };
        let Inputs { heads, q, k, v, g, beta } = self.inputs;
        let shape @ (tokens, values, width) = (q.dim(0)?, heads.num_v_heads, heads.head_v_dim);
        let mut out = vec![0.0f32; tokens * values * width];
        let [q, k, v, g, beta] = [q, k, v, g, beta].map(Tensor::storage_and_layout);
        let call = Call::new(
            heads,
            tokens,
            view(&q)?,
            view(&k)?,
            view(&v)?,
            Gates::Log { g: view(&g)?, beta: view(&beta)? },
            ViewMut::new(&mut out, Strides::dense(values, width)),
        )
        .state(State { data: &mut state[layout.start_offset()..], layout: StateLayout::key_major(&heads) });
        match tokens {
            1 => cpu::decode(call),
            _ => cpu::run_by(call, path),
        }
        .map_err(Error::wrap)?;
        *self.out.borrow_mut() = Some(Tensor::from_vec(out, shape, &Device::Cpu)?);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, state: &mut candle_core::CudaStorage, layout: &Layout) -> Result<()> {
        let Prefill::Gpu(gdn, kernel) = self.prefill else {
            return Err(Error::msg("the tensors are on the GPU"));
        };
        *self.out.borrow_mut() = Some(on_gpu::run(gdn, *kernel, &self.inputs, state, layout)?);
        Ok(())
    }
}

/// A candle tensor as the library reads it: strides and all, without a copy.
fn view<'a>((storage, layout): &'a (impl std::ops::Deref<Target = Storage>, &Layout)) -> Result<View<'a>> {
    let Storage::Cpu(storage) = &**storage else {
        return Err(Error::msg("all tensors of a call are in one place"));
    };
    Ok(View::new(&storage.as_slice::<f32>()?[layout.start_offset()..], strides(layout)?))
}

/// Of `[token, head, dim]` or `[token, head]`.
fn strides(layout: &Layout) -> Result<Strides> {
    match *layout.stride() {
        [token, head] | [token, head, 1] => Ok(Strides { token, head }),
        _ => Err(Error::msg("the elements of a head have to be contiguous")),
    }
}
