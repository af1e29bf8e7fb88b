//! The recurrence on candle's tensors: an operation in place on the state.
#![forbid(unsafe_code)]
use crate::recurrence::{Inputs, Recurrence};
use candle_core::{CpuStorage, DType, Device, Error, InplaceOp1, Layout, Result, Storage, Tensor};
use host::cpu::Path;
use host::{Call, Gates, Heads, State, StateLayout, Strides, View, ViewMut, cpu};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// The states of all layers as candle tensors, `[HV, 128, 128]`.
#[derive(Debug)]
pub struct OnCandle {
    prefill: Path,
    states: Vec<Tensor>,
    elapsed: Duration,
}

impl OnCandle {
    /// For so many layers; prompts go by `prefill`, single tokens token by token.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn new(heads: &Heads, layers: usize, prefill: Path, device: &Device) -> Result<Self> {
        let shape = (heads.num_v_heads, heads.head_k_dim, heads.head_v_dim);
        let states = (0..layers).map(|_| Tensor::zeros(shape, DType::F32, device)).collect::<Result<_>>()?;
        Ok(Self { prefill, states, elapsed: Duration::ZERO })
    }
}

impl Recurrence for OnCandle {
    fn name(&self) -> String {
        format!("cpu {}", self.prefill.name())
    }

    fn reset(&mut self) -> Result<()> {
        self.elapsed = Duration::ZERO;
        self.states.iter_mut().try_for_each(|state| {
            *state = state.zeros_like()?;
            Ok(())
        })
    }

    fn run(&mut self, layer: usize, inputs: &Inputs<'_>) -> Result<Tensor> {
        let path = if inputs.q.dim(0)? == 1 { Path::Recurrent } else { self.prefill };
        let step = Step { inputs: *inputs, path, out: RefCell::default() };
        let start = Instant::now();
        self.states[layer].inplace_op1(&step)?;
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
    path: Path,
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
        let Inputs { heads, q, k, v, g, beta } = self.inputs;
        let (tokens, width) = (q.dim(0)?, heads.head_v_dim);
        let mut out = vec![0.0f32; tokens * heads.num_v_heads * width];
        let [q, k, v, g, beta] = [q, k, v, g, beta].map(Tensor::storage_and_layout);
        let call = Call::new(
            heads,
            tokens,
            view(&q)?,
            view(&k)?,
            view(&v)?,
            Gates::Log { g: view(&g)?, beta: view(&beta)? },
            ViewMut::new(&mut out, Strides::dense(heads.num_v_heads, width)),
        )
        .state(State { data: &mut state[layout.start_offset()..], layout: StateLayout::key_major(&heads) });
        cpu::run_by(call, self.path).map_err(Error::wrap)?;
        let shape = (tokens, heads.num_v_heads, width);
        *self.out.borrow_mut() = Some(Tensor::from_vec(out, shape, &Device::Cpu)?);
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
