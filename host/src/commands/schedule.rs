//! Which path runs which prompt lengths in a parity run: no device in sight, so that it can be read and tested.
#![forbid(unsafe_code)]
use super::paths::{Offer, Path};
use super::report::Skip;
use crate::cli::Backend;
use host::{Heads, Result};

/// Lengths that are compared with float64: around a warp, a chunk of 32, 64 or 128 tokens, and a segment of 2,048.
const LENGTHS: [usize; 14] = [1, 2, 31, 32, 33, 127, 128, 129, 600, 1000, 2048, 2049, 4099, 8192];

/// A length at which paths are compared with each other only, where there is a GPU.
const LONG: usize = 32_768;

/// Above this there is no float64 reference where two paths can be compared with each other.
const REFERENCE_TOKENS: usize = 8192;

/// Tokens times value heads that the emulator runs unasked, a few seconds: 129 tokens of 48 heads, 1,000 of 6.
const EMULATED_HEAD_TOKENS: usize = 6200;

/// Heads for the emulator's longer prompts.
const FEW_HEADS: (usize, usize) = (2, 6);

/// What a parity run was asked for.
#[derive(Clone, Debug)]
pub struct Request {
    pub heads: Heads,
    /// Empty: the usual lengths.
    pub tokens: Vec<usize>,
    /// Backends asked for by name.
    pub on: Vec<Backend>,
}

/// The lengths of one set of heads.
#[derive(Clone, Debug)]
pub struct Section {
    pub heads: Heads,
    /// Ascending.
    pub lengths: Vec<Length>,
    pub skipped: Vec<Skip>,
}

/// The paths that run one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Length {
    pub tokens: usize,
    pub paths: Vec<Path>,
    /// Whether they are compared with float64, besides with each other.
    pub reference: bool,
}

/// Whether the emulator runs so much without being asked for by name.
///
/// # Errors
/// Why it does not.
pub fn emulator_takes(heads: &Heads, tokens: usize) -> Result<(), String> {
    let most = EMULATED_HEAD_TOKENS / heads.num_v_heads;
    if tokens <= most {
        return Ok(());
    }
    Err(format!("slow: unasked the emulator runs at most {most} tokens of {} value heads", heads.num_v_heads))
}

/// Who runs what.
///
/// # Errors
/// None in practice: [`FEW_HEADS`] are legal heads.
pub fn schedule(request: &Request, offers: &[Offer]) -> Result<Vec<Section>> {
    let usual = request.tokens.is_empty();
    let mut tokens = request.tokens.clone();
    if usual {
        tokens.extend(LENGTHS);
        tokens.push(LONG);
    }
    tokens.sort_unstable();
    tokens.dedup();

    let forced = !usual && request.on.contains(&Backend::Emulator);
    let gpu = offers.iter().any(|offer| offer.path.backend() == Backend::Cuda && offer.unavailable.is_none());
    let mut section = Section::new(request.heads);
    for offer in offers {
        for &tokens in &tokens {
            let refusal = match (&offer.unavailable, offer.path.backend()) {
                (Some(reason), _) => Some(reason.clone()),
                (None, Backend::Emulator) if !forced => emulator_takes(&request.heads, tokens).err(),
                (None, Backend::Cpu) if usual && tokens == LONG && !gpu => {
                    Some("so long a prompt is compared path against path, and no GPU is in use".to_owned())
                }
                _ => None,
            };
            match refusal {
                Some(reason) => section.skip(offer.path, tokens, reason),
                None => section.add(offer.path, tokens),
            }
        }
    }
    section.finish();

    let emulated = offers.iter().any(|offer| offer.path.backend() == Backend::Emulator);
    let mut sections = vec![section];
    if usual && emulated && request.heads.num_v_heads > FEW_HEADS.1 {
        sections.push(few_heads(request, offers)?);
    }
    Ok(sections)
}

/// The longer of the usual lengths with few heads, where the emulator gets through them.
fn few_heads(request: &Request, offers: &[Offer]) -> Result<Section> {
    let mut section = Section::new(Heads::new(FEW_HEADS.0, FEW_HEADS.1, request.heads.map)?);
    let available = || offers.iter().filter(|offer| offer.unavailable.is_none());
    for tokens in LENGTHS {
        if emulator_takes(&request.heads, tokens).is_err() && emulator_takes(&section.heads, tokens).is_ok() {
            available().for_each(|offer| section.add(offer.path, tokens));
        }
    }
    section.finish();
    Ok(section)
}

impl Section {
    fn new(heads: Heads) -> Self {
        Self { heads, lengths: Vec::new(), skipped: Vec::new() }
    }

    /// The lengths that need the reference.
    pub fn reference_lengths(&self) -> Vec<usize> {
        self.lengths.iter().filter(|length| length.reference).map(|length| length.tokens).collect()
    }

    fn add(&mut self, path: Path, tokens: usize) {
        match self.lengths.iter_mut().find(|length| length.tokens == tokens) {
            Some(length) => length.paths.push(path),
            None => self.lengths.push(Length { tokens, paths: vec![path], reference: true }),
        }
    }

    fn skip(&mut self, path: Path, tokens: usize, reason: String) {
        match self.skipped.iter_mut().find(|skip| skip.path == path && skip.reason == reason) {
            Some(skip) => skip.tokens.push(tokens),
            None => {
                self.skipped.push(Skip { name: None, heads: (&self.heads).into(), path, tokens: vec![tokens], reason })
            }
        }
    }

    fn finish(&mut self) {
        self.lengths.sort_by_key(|length| length.tokens);
        for length in &mut self.lengths {
            length.reference = length.tokens <= REFERENCE_TOKENS || length.paths.len() == 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::cpu;
    use host::{HeadMap, Kernel};

    const EMULATED: Path = Path::Emulator(Kernel::RecurrentByColumn);
    const ON_GPU: Path = Path::Cuda(Kernel::RecurrentByKeyHead);

    fn offers(gpu: bool) -> Vec<Offer> {
        let unavailable = |path: Path| (path.backend() == Backend::Cuda && !gpu).then(|| "no driver".to_owned());
        Path::all().into_iter().map(|path| Offer { path, unavailable: unavailable(path) }).collect()
    }

    fn request(tokens: &[usize], on: &[Backend]) -> Request {
        let heads = Heads::new(16, 48, HeadMap::Grouped).unwrap();
        Request { heads, tokens: tokens.to_vec(), on: on.to_vec() }
    }

    fn tokens_of(section: &Section, path: Path) -> Vec<usize> {
        section.lengths.iter().filter(|length| length.paths.contains(&path)).map(|length| length.tokens).collect()
    }

    #[test]
    fn without_a_gpu_every_usual_length_still_runs() {
        let [all, few] = schedule(&request(&[], &[]), &offers(false)).unwrap().try_into().unwrap();
        assert_eq!(tokens_of(&all, Path::Cpu(cpu::Path::Recurrent)), LENGTHS);
        assert_eq!(tokens_of(&all, EMULATED), LENGTHS[..8]);
        assert!(tokens_of(&all, ON_GPU).is_empty());
        assert_eq!(tokens_of(&few, EMULATED), [600, 1000]);
        assert_eq!(few.heads.num_v_heads, 6);
        assert!(all.lengths.iter().all(|length| length.reference));
        // Nothing is left out without a reason: the kernels without a GPU, the CPU at the long prompt, the emulator.
        let kernels = Kernel::ALL.len();
        assert_eq!(
            all.skipped.iter().map(|skip| skip.tokens.len()).sum::<usize>(),
            kernels * 15 + cpu::Path::ALL.len() + kernels * 7
        );
    }

    #[test]
    fn with_a_gpu_the_long_prompt_is_compared_path_against_path() {
        let sections = schedule(&request(&[], &[]), &offers(true)).unwrap();
        let long = sections[0].lengths.last().unwrap();
        assert_eq!((long.tokens, long.reference), (LONG, false));
        let on_gpu = Kernel::ALL.map(Path::Cuda);
        assert_eq!(long.paths, [&on_gpu[..], &cpu::Path::ALL.map(Path::Cpu)[..]].concat());
    }

    #[test]
    fn lengths_asked_for_run_in_the_emulator_if_that_is_asked_for_too() {
        let sections = schedule(&request(&[600, 0], &[]), &offers(false)).unwrap();
        assert_eq!(sections.len(), 1);
        assert_eq!(tokens_of(&sections[0], EMULATED), [0]);
        let forced = request(&[600, 0], &[Backend::Emulator]);
        assert_eq!(tokens_of(&schedule(&forced, &offers(false)).unwrap()[0], EMULATED), [0, 600]);
    }

    #[test]
    fn one_path_alone_is_always_compared_with_the_reference() {
        let cpu = vec![Offer { path: Path::Cpu(cpu::Path::Recurrent), unavailable: None }];
        let sections = schedule(&request(&[LONG], &[Backend::Cpu]), &cpu).unwrap();
        assert_eq!(sections[0].reference_lengths(), [LONG]);
    }
}
