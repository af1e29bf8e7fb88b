//! `STRATA_PREFILL_TIMING=1`: a line on standard error for each chunked call, with the time of each phase.
use super::error::CudaError;
use super::raw::{self, check};
use super::stream::Stream;
use cust::sys::CUevent;

/// The phase of launches that are none of a segment's: what is not plain is converted by them.
pub(super) const CONVERSION: usize = usize::MAX;

/// Events around the launches of one call. For a look into a running engine: it waits for the stream at the end of the call,
/// which no call does otherwise.
#[derive(Debug)]
pub(super) struct Timing {
    stream: Stream,
    /// The names of a segment's launches.
    phases: &'static [&'static str],
    /// One before the first launch and one after each, with which phase it was.
    events: Vec<(usize, CUevent)>,
}

impl Timing {
    /// Marks the start. The context is current for the life of this.
    pub fn start(stream: Stream, phases: &'static [&'static str]) -> Result<Self, CudaError> {
        let mut timing = Self { stream, phases, events: Vec::new() };
        timing.mark(0)?;
        Ok(timing)
    }

    /// Marks the end of a launch of a phase.
    pub fn mark(&mut self, phase: usize) -> Result<(), CudaError> {
        let mut event = core::ptr::null_mut();
        // SAFETY: the event is written; destroyed in `drop`.
        check("cuEventCreate", unsafe { raw::cuEventCreate(&raw mut event, 0) })?;
        self.events.push((phase, event));
        // SAFETY: both handles are alive.
        Ok(check("cuEventRecord", unsafe { raw::cuEventRecord(event, self.stream.as_raw().cast()) })?)
    }

    /// Waits, and says how long each phase took.
    pub fn report(&self, tokens: usize) -> Result<String, CudaError> {
        if let Some(&(_, last)) = self.events.last() {
            // SAFETY: recorded in `mark`.
            check("cuEventSynchronize", unsafe { raw::cuEventSynchronize(last) })?;
        }
        let mut phases = vec![0.0f32; self.phases.len()];
        let mut conversion = 0.0;
        for pair in self.events.windows(2) {
            let ((_, start), (phase, end)) = (pair[0], pair[1]);
            let mut milliseconds = 0.0;
            // SAFETY: written; both events have passed.
            check("cuEventElapsedTime", unsafe { raw::cuEventElapsedTime(&raw mut milliseconds, start, end) })?;
            *phases.get_mut(phase).unwrap_or(&mut conversion) += milliseconds * 1e3;
        }
        let conversion = (conversion > 0.0).then_some((&"conversion", conversion));
        let phases = self.phases.iter().zip(phases).chain(conversion);
        let phases: Vec<String> = phases.map(|(name, time)| format!("{name} {time:.1} us")).collect();
        Ok(format!("gdn prefill, {tokens} tokens: {}", phases.join(", ")))
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        for &(_, event) in &self.events {
            // SAFETY: created in `mark`, destroyed once.
            let _ = unsafe { raw::cuEventDestroy(event) };
        }
    }
}
