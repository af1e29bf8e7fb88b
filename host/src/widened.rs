//! Calls that the chunked kernels do not read as they are: other element types, a norm, raw gates, states in other layouts or in
//! the slots of a table. Window by window they are converted to plain f32 in the scratch, go as a plain call would, and their
//! outputs and states are put where the caller has them.
#![forbid(unsafe_code)]
use crate::conversions::Places;
use crate::dispatch::{self, Launch};
use crate::error::{Error, Reason, Result};
use crate::kernel::Kernel;
use crate::plain;
use crate::policy::{Card, PathChoice, Policy};
use crate::request::Request;
use crate::steps::{self, Step};
use crate::windows::{Window, windows};
use cuda_std::GlobalMut;
use kernels_gpu::kernels::chunk::CHUNK;

/// Tokens of a window where the scratch may be as large as it likes: as many as the kernels on tensor cores take together. A
/// multiple of their segments, so that they are cut where they would be cut anyway.
const WINDOW_TOKENS: usize = 8192;

/// Sequences of a window, at most: their states stand in the scratch.
const WINDOW_SEQUENCES: usize = 64;

/// An address for a plan, which looks at alignment alone.
const NOWHERE: u64 = 256;

/// A call by windows.
pub(crate) struct Widened {
    windows: Vec<Window>,
    /// By which path each of them goes.
    paths: Vec<PathChoice>,
    places: Places,
    /// What a window's plain call may take of the scratch.
    limit: usize,
    launch: Launch,
}

/// Whether such a call can be converted, which [`plain::require`] has not let pass.
///
/// # Errors
/// The first reason against it.
fn require(request: &Request<'_>) -> Result<(), Reason> {
    if request.checkpoints.is_some() {
        return Err(Reason::Checkpoints);
    }
    let Some((interval, _)) = request.every else { return Ok(()) };
    // A window has to be as long, and rows are counted in 31 bits.
    if interval.saturating_mul(request.heads.num_v_heads) > i32::MAX as usize {
        return plain::require(request);
    }
    // States that are kept on the way are written where they stay.
    plain::require_states(request)
}

impl Widened {
    /// `request`, whose idle strides are 0, where the equivalent plain call takes a chunked kernel.
    ///
    /// # Errors
    /// [`Error::Refused`] where it does not, where something of it is not converted, or where the scratch is too little.
    pub fn of(card: &Card, request: &Request<'_>, policy: &Policy) -> Result<Self> {
        let asked_for = if let PathChoice::Forced(kernel) = policy.path { kernel } else { Kernel::Chunked };
        let refused = |reason| Error::Refused { kernel: asked_for.name(), reason };
        require(request).map_err(refused)?;
        let whole = Window::whole(&request.sequences);
        let plain = Places::of(request, &[]).plain(request, &whole, NOWHERE);
        // Windows may be short, so that the limit holds for them alone.
        let unlimited = &Policy { max_scratch_bytes: usize::MAX, ..policy.clone() };
        let launch = steps::choose(card, &plain, unlimited)?;
        // Without sequences there is nothing to choose, and nothing to do.
        if !launch.kernel.is_chunked() && request.sequences.count() > 0 {
            return Err(refused(launch.reason));
        }
        let mut need = 0;
        let shorter = |tokens: &usize| (*tokens > CHUNK).then_some(*tokens / 2);
        for tokens in core::iter::successors(Some(WINDOW_TOKENS), shorter) {
            // Where states are kept on the way, windows end at them.
            let interval = request.every.map_or(1, |(interval, _)| interval);
            let tokens = tokens.max(interval) / interval * interval;
            let windows = windows(&request.sequences, tokens, WINDOW_SEQUENCES);
            let places = Places::of(request, &windows);
            let own = places.floats * size_of::<f32>();
            let limit = policy.max_scratch_bytes.saturating_sub(own);
            let path = |window: &Window| {
                if !window.is_cut() {
                    return Ok(policy.path);
                }
                // A piece goes by the kernel that the sequence takes.
                let (problem, pointers) = plain::sequence(&plain, window.sequences.start);
                dispatch::choose(card, &problem, &pointers, unlimited).map(|launch| PathChoice::Forced(launch.kernel))
            };
            let paths = windows.iter().map(path).collect::<Result<_>>()?;
            let mut widened = Self { windows, paths, places, limit, launch };
            match widened.plan(card, request, policy) {
                Ok(_) if own > policy.max_scratch_bytes => need = own,
                Ok((scratch_bytes, launches)) => {
                    widened.launch = Launch { scratch_bytes: own + scratch_bytes, launches, ..launch };
                    return Ok(widened);
                }
                Err(Error::Refused { reason: Reason::ScratchLimit { need: more, .. }, .. }) => need = own + more,
                Err(error) => return Err(error),
            }
        }
        Err(refused(Reason::ScratchLimit { need, limit: policy.max_scratch_bytes }))
    }

    /// What it runs.
    pub fn launch(&self) -> Launch {
        self.launch
    }

    /// Scratch of the windows' plain calls, in bytes, and all launches.
    ///
    /// # Errors
    /// [`Error::Refused`] where a window does not go by the kernels that it should.
    fn plan(&self, card: &Card, request: &Request<'_>, policy: &Policy) -> Result<(usize, usize)> {
        let (mut scratch_bytes, mut launches, mut need) = (0, 0, 0);
        for (window, &path) in self.windows.iter().zip(&self.paths) {
            let plain = self.places.plain(request, window, NOWHERE);
            match steps::choose(card, &plain, &self.policy(policy, path)) {
                // By itself such a window would go token by token.
                Ok(Launch { reason: Reason::ScratchLimit { need: more, .. }, .. })
                | Err(Error::Refused { reason: Reason::ScratchLimit { need: more, .. }, .. }) => need = need.max(more),
                Ok(launch) => {
                    scratch_bytes = scratch_bytes.max(launch.scratch_bytes);
                    let [before, after] = self.around(request, window, GlobalMut::new(NOWHERE as *mut f32));
                    launches += before.len() + launch.launches + after.len();
                }
                Err(error) => return Err(error),
            }
        }
        if need > 0 {
            let reason = Reason::ScratchLimit { need, limit: self.limit };
            return Err(Error::Refused { kernel: self.launch.kernel.name(), reason });
        }
        Ok((scratch_bytes, launches))
    }

    fn policy(&self, policy: &Policy, path: PathChoice) -> Policy {
        Policy { path, max_scratch_bytes: self.limit, ..policy.clone() }
    }

    /// The launches in front of a window's plain call, and those behind it.
    fn around(&self, request: &Request<'_>, window: &Window, scratch: GlobalMut<f32>) -> [Vec<Step>; 2] {
        let places = &self.places;
        let (words, clear) = places.clear_padding(request, window, scratch).unzip();
        let before = [
            places.widen(request, window, scratch).map(Step::Widen),
            places.gather(request, window, scratch).map(Step::Copy),
        ];
        let after = [
            places.narrow(request, window, scratch).map(Step::Narrow),
            places.scatter(request, window, scratch).map(Step::Copy),
            words.flatten().map(Step::Upload),
            clear.map(Step::ClearPadding),
        ];
        [before.into_iter().flatten().collect(), after.into_iter().flatten().collect()]
    }

    /// Every launch, in order. `scratch` is as many bytes as the launch says.
    ///
    /// # Errors
    /// Those of `carry_out`.
    pub fn steps(
        &self,
        card: &Card,
        request: &Request<'_>,
        policy: &Policy,
        scratch: GlobalMut<f32>,
        carry_out: &mut dyn FnMut(Step) -> Result<()>,
    ) -> Result<()> {
        for (window, &path) in self.windows.iter().zip(&self.paths) {
            let [before, after] = self.around(request, window, scratch);
            before.into_iter().try_for_each(&mut *carry_out)?;
            let plain = self.places.plain(request, window, scratch.as_ptr() as u64);
            let policy = self.policy(policy, path);
            let launch = steps::choose(card, &plain, &policy)?;
            steps::steps(card, &plain, &launch, &policy, scratch.offset(self.places.floats), &mut *carry_out)?;
            after.into_iter().try_for_each(&mut *carry_out)?;
        }
        Ok(())
    }
}
