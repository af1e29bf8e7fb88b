//! Inputs in place, and the calls that are measured on them: the only file of the command that knows how a path is called.
#![forbid(unsafe_code)]
use std::time::Instant;

use super::super::paths::{Machine, Path};
use super::super::runs::Output;
use crate::cli::Backend;
use host::inputs::Inputs;

/// Inputs where the paths of one backend can read them.
pub struct Bed<'a> {
    inputs: &'a Inputs,
    /// For the CPU, as long as the longest call; empty for a GPU.
    out: Vec<f32>,
    state: Vec<f32>,
    #[cfg(feature = "cuda")]
    resident: Option<host::cuda::Resident>,
}

impl<'a> Bed<'a> {
    /// Puts `inputs` where `backend` reads them.
    ///
    /// # Errors
    /// If the device has no room for them.
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
    pub fn new(machine: &Machine, backend: Backend, inputs: &'a Inputs) -> host::Result<Self> {
        let elements = if backend == Backend::Cpu { inputs.out_len(inputs.tokens) } else { 0 };
        Ok(Self {
            inputs,
            out: vec![0.0; elements],
            state: vec![0.0; inputs.state_len()],
            #[cfg(feature = "cuda")]
            resident: match machine.device() {
                Some(device) if backend == Backend::Cuda => Some(device.resident(inputs)?),
                _ => None,
            },
        })
    }

    /// What `path` makes of the first `tokens` tokens, with the same buffers as in [`Bed::sample`]. What it does not
    /// write is NaN.
    ///
    /// # Errors
    /// As the path has them.
    pub fn output(&mut self, path: Path, tokens: usize) -> host::Result<Output> {
        let mut out = vec![f32::NAN; self.inputs.out_len(tokens)];
        let mut state = vec![f32::NAN; self.inputs.state_len()];
        match path {
            Path::Cpu(path) => host::cpu::run_by(self.inputs.call_first(tokens, &mut out, &mut state), path)?,
            #[cfg(feature = "cuda")]
            Path::Cuda(kernel) => {
                self.resident().results(kernel, tokens, &mut out, &mut state)?;
            }
            _ => unreachable!("a path that is not measured: {path}"),
        }
        Ok(Output { path, out, state })
    }

    /// Microseconds that `path` takes for the first `tokens` tokens: on so many of the device's multiprocessors, or on the
    /// wall for the CPU.
    ///
    /// # Errors
    /// As the path has them.
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
    pub fn sample(&mut self, path: Path, tokens: usize, multiprocessors: Option<u32>) -> host::Result<f64> {
        match path {
            Path::Cpu(path) => {
                let out = &mut self.out[..self.inputs.out_len(tokens)];
                let call = self.inputs.call_first(tokens, out, &mut self.state);
                let started = Instant::now();
                host::cpu::run_by(call, path)?;
                Ok(started.elapsed().as_secs_f64() * 1e6)
            }
            #[cfg(feature = "cuda")]
            Path::Cuda(kernel) => self.resident().time(kernel, tokens, multiprocessors.unwrap_or(u32::MAX)),
            _ => unreachable!("a path that is not measured: {path}"),
        }
    }

    /// Where the GPU is on the bus; None for the CPU.
    pub fn address(&self) -> Option<String> {
        #[cfg(feature = "cuda")]
        return self.resident.as_ref().map(|resident| resident.bus_address().to_owned());
        #[cfg(not(feature = "cuda"))]
        None
    }

    #[cfg(feature = "cuda")]
    fn resident(&mut self) -> &mut host::cuda::Resident {
        self.resident.as_mut().expect("made with the bed of the backend cuda")
    }
}
