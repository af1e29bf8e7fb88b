//! How a path is chosen: what a card is, what a caller wants, and the engine's switches.
#![forbid(unsafe_code)]
use crate::error::{Error, Reason, Result};
use crate::kernel::Kernel;
use cuda_std::kernel::Architecture;
use kernels_gpu::table;

/// What a card is, as far as a choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Compute capability, times ten.
    pub capability: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// The most shared memory that a block can ask for, in bytes.
    pub shared_bytes_optin: u32,
    /// The cards that the PTX file loaded on it is for: what kernels it has.
    pub ptx: Architecture,
}

impl Card {
    /// One whose driver takes the best PTX file that there is for it.
    #[must_use]
    pub const fn new(capability: u32, multiprocessors: u32, shared_bytes_optin: u32) -> Self {
        // On a card that is older than every file nothing runs, whichever is named.
        let ptx = match table::file_for(capability) {
            Some(file) => file,
            None => table::FILES[0],
        };
        Self { capability, multiprocessors, shared_bytes_optin, ptx }
    }

    /// Whether it has a kernel that is for `architecture`.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn require(&self, architecture: Architecture) -> Result<(), Reason> {
        let have = self.capability;
        match architecture {
            Architecture::From(need) if have < need => Err(Reason::Capability { have, need }),
            Architecture::Only(only) if have != only => Err(Reason::OtherCapability { have, only }),
            _ if !architecture.fits_in(self.ptx) => Err(Reason::NotLoaded),
            _ => Ok(()),
        }
    }
}

/// Which path is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathChoice {
    /// The fastest that can run; the reason against the first choice is in the launch.
    #[default]
    Auto,
    /// Token by token, by whichever kernel can run: the same bits on every card.
    Recurrent,
    /// This one, or an error.
    Forced(Kernel),
}

/// Where the chunked path on tensor cores is as fast as the kernel by key head: on an H200 at 16/48 heads 24.1 against 23.9
/// us at 64 tokens, 21.4 against 16.2 at 32, 27 against 39 at 128.
const TENSOR_TOKENS: usize = 64;

/// Where the one in 32-bit floats is: there 39.0 against 39.3 us at 128 tokens, 33.5 against 31.6 at 96
/// (`host/results/2026-11-29-h200`).
const CHUNKED_TOKENS: usize = 128;

/// How to choose. The default is [`PathChoice::Auto`] with the thresholds that were measured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Which path.
    pub path: PathChoice,
    /// The fewest tokens that the chunked path on tensor cores is chosen for.
    pub min_tensor_tokens: usize,
    /// The fewest that the chunked path in 32-bit floats is chosen for, and that sequences of a batch go one after the other
    /// for.
    pub min_chunked_tokens: usize,
    /// Whether a chunked path is chosen only where the card has multiprocessors enough for it: as many as blocks for the one
    /// in 32-bit floats, a third as many for the one on tensor cores.
    pub enough_multiprocessors: bool,
    /// Whether the kernel by key head may be chosen.
    pub by_key_head: bool,
    /// The most scratch that a chunked path takes, in bytes, with what is converted around it; longer prompts go through it in
    /// turns.
    pub max_scratch_bytes: usize,
    /// Pass for this compute capability, times ten, in every choice.
    pub emulate_capability: Option<u32>,
    /// Print the time of each phase of a chunked call on standard error. Such a call waits for its stream, and cannot be
    /// captured.
    pub timing: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            path: PathChoice::Auto,
            min_tensor_tokens: TENSOR_TOKENS,
            min_chunked_tokens: CHUNKED_TOKENS,
            enough_multiprocessors: true,
            by_key_head: true,
            max_scratch_bytes: usize::MAX,
            emulate_capability: None,
            timing: false,
        }
    }
}

impl Policy {
    /// The default policy with `path`.
    #[must_use]
    pub fn with_path(path: PathChoice) -> Self {
        Self { path, ..Self::default() }
    }

    /// `card` with the compute capability that it passes for.
    pub(crate) fn passing(&self, card: &Card) -> Card {
        Card { capability: self.emulate_capability.unwrap_or(card.capability), ..*card }
    }

    /// The engine's switches: `STRATA_GDN_CHUNKED` (unset or 0: token by token, bit for bit; 1: a chunked path where it is
    /// the faster one; 2: also on cards with fewer multiprocessors than it asks for), `STRATA_GDN_KEYHEAD` (0: the kernel by
    /// column), `STRATA_EMULATE_CC` (pass for that compute capability, times ten), `STRATA_PREFILL_TIMING` (1: the time of
    /// each phase).
    ///
    /// # Errors
    /// [`Error::Environment`] for any other value, naming the variable.
    pub fn from_env() -> Result<Self> {
        // What is not Unicode is a value too, and none of the legal ones.
        Self::from_variables(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn from_variables(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self> {
        let invalid = |name, value, expected| Error::Environment { name, value, expected };
        let mut policy = Self::default();
        let name = "STRATA_GDN_CHUNKED";
        (policy.path, policy.enough_multiprocessors) = match variable(name).as_deref() {
            None | Some("" | "0") => (PathChoice::Recurrent, true),
            Some("1") => (PathChoice::Auto, true),
            Some("2") => (PathChoice::Auto, false),
            Some(value) => return Err(invalid(name, value.to_owned(), "0, 1 or 2")),
        };
        let name = "STRATA_GDN_KEYHEAD";
        policy.by_key_head = match variable(name).as_deref() {
            None | Some("" | "1") => true,
            Some("0") => false,
            Some(value) => return Err(invalid(name, value.to_owned(), "0 or 1")),
        };
        let name = "STRATA_PREFILL_TIMING";
        policy.timing = match variable(name).as_deref() {
            None | Some("" | "0") => false,
            Some("1") => true,
            Some(value) => return Err(invalid(name, value.to_owned(), "0 or 1")),
        };
        let name = "STRATA_EMULATE_CC";
        policy.emulate_capability = match variable(name).filter(|value| !value.is_empty()) {
            None => None,
            Some(value) => match value.parse() {
                Ok(capability @ 10..1000) => Some(capability),
                _ => return Err(invalid(name, value, "a compute capability times ten, such as 89")),
            },
        };
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Policy> {
        Policy::from_variables(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_kernel_for_one_card_alone_needs_that_card_and_a_driver_that_reads_its_file() {
        use Architecture::{From, Only};
        let hopper = Card::new(90, 132, 232_448);
        let old_driver = Card { ptx: From(80), ..hopper };
        let emulated = |capability, card: Card| Card { capability, ..card };
        let blackwell = Card::new(100, 148, 232_448);
        for (card, architecture, verdict) in [
            (hopper, Only(90), Ok(())),
            (hopper, From(80), Ok(())),
            (hopper, From(75), Ok(())),
            (old_driver, Only(90), Err(Reason::NotLoaded)),
            (old_driver, From(80), Ok(())),
            (blackwell, Only(90), Err(Reason::OtherCapability { have: 100, only: 90 })),
            (blackwell, From(80), Ok(())),
            (Card::new(89, 128, 101_376), Only(90), Err(Reason::OtherCapability { have: 89, only: 90 })),
            (Card::new(75, 40, 65_536), From(80), Err(Reason::Capability { have: 75, need: 80 })),
            (Card::new(70, 80, 98_304), From(75), Err(Reason::Capability { have: 70, need: 75 })),
            (emulated(75, hopper), From(75), Ok(())),
            (emulated(89, hopper), Only(90), Err(Reason::OtherCapability { have: 89, only: 90 })),
            (emulated(90, blackwell), Only(90), Err(Reason::NotLoaded)),
        ] {
            assert_eq!(card.require(architecture), verdict, "{card:?} {architecture:?}");
        }
        let text = blackwell.require(Only(90)).unwrap_err().to_string();
        assert_eq!(text, "compute capability 10.0; it is for 9.0 alone");
    }

    #[test]
    fn unset_switches_mean_token_by_token() {
        for pairs in [&[][..], &[("STRATA_GDN_CHUNKED", "0")], &[("STRATA_GDN_CHUNKED", "")]] {
            assert_eq!(of(pairs).unwrap(), Policy::with_path(PathChoice::Recurrent));
        }
    }

    #[test]
    fn switches() {
        assert_eq!(of(&[("STRATA_GDN_CHUNKED", "1")]).unwrap(), Policy::default());
        let two = of(&[("STRATA_GDN_CHUNKED", "2")]).unwrap();
        assert_eq!((two.path, two.enough_multiprocessors), (PathChoice::Auto, false));
        assert!(!of(&[("STRATA_GDN_KEYHEAD", "0")]).unwrap().by_key_head);
        assert!(of(&[("STRATA_PREFILL_TIMING", "1")]).unwrap().timing);
        assert_eq!(of(&[("STRATA_EMULATE_CC", "75")]).unwrap().emulate_capability, Some(75));
    }

    #[test]
    fn other_values_name_the_variable() {
        for (name, value) in [
            ("STRATA_GDN_CHUNKED", "yes"),
            ("STRATA_GDN_CHUNKED", "3"),
            ("STRATA_GDN_KEYHEAD", "2"),
            ("STRATA_PREFILL_TIMING", "on"),
            ("STRATA_EMULATE_CC", "8.9"),
            ("STRATA_EMULATE_CC", "-1"),
        ] {
            let text = of(&[(name, value)]).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(value), "{text}");
        }
    }
}
