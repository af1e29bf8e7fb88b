//! The paths that this machine offers, and how a call is run on each.
#![forbid(unsafe_code)]
use std::fmt;

use anyhow::bail;
use serde::Serialize;

use super::report::Skip;
use crate::cli::Backend;
#[cfg(feature = "cuda")]
use host::Policy;
use host::{Call, Kernel, cpu};

/// One way to run the recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Cpu(cpu::Path),
    Emulator(Kernel),
    Cuda(Kernel),
}

impl Path {
    /// Every path there is, those on a GPU first.
    pub fn all() -> Vec<Self> {
        let cuda = Kernel::ALL.into_iter().map(Self::Cuda);
        let emulator = Kernel::ALL.into_iter().map(Self::Emulator);
        cuda.chain(cpu::Path::ALL.map(Self::Cpu)).chain(emulator).collect()
    }

    pub fn backend(self) -> Backend {
        match self {
            Self::Cpu(_) => Backend::Cpu,
            Self::Emulator(_) => Backend::Emulator,
            Self::Cuda(_) => Backend::Cuda,
        }
    }

    pub fn kernel(self) -> Option<Kernel> {
        match self {
            Self::Cpu(_) => None,
            Self::Emulator(kernel) | Self::Cuda(kernel) => Some(kernel),
        }
    }
}

impl Path {
    /// Whether `name` means it: its whole name, its name on every backend, or that of its backend.
    pub fn is_named(self, name: &str) -> bool {
        let whole = self.to_string();
        whole == name || whole.split(' ').any(|word| word == name)
    }

    /// Whether it takes many tokens at a time.
    pub fn is_chunked(self) -> bool {
        match self {
            Self::Cpu(path) => path == cpu::Path::Chunked,
            Self::Emulator(kernel) | Self::Cuda(kernel) => kernel.is_chunked(),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Cpu(path) => path.name(),
            Self::Emulator(kernel) | Self::Cuda(kernel) => kernel.name(),
        };
        formatter.pad(&format!("{} {name}", self.backend()))
    }
}

impl Serialize for Path {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A path, and why it cannot run here where it cannot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offer {
    pub path: Path,
    /// None where it can run.
    pub unavailable: Option<String>,
}

/// A GPU, in words and numbers for reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    pub name: String,
    /// CUDA version of the driver, major and minor.
    pub driver: (u32, u32),
    /// Times ten: 90 for 9.0.
    pub capability: u32,
    pub multiprocessors: u32,
    /// Opt-in limit of shared memory of a block, in bytes.
    pub shared_bytes_optin: u32,
    pub memory_bytes: u64,
}

impl fmt::Display for Gpu {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, driver, capability, multiprocessors, shared_bytes_optin, memory_bytes } = self;
        write!(
            formatter,
            "{name}, compute capability {}.{}, {multiprocessors} SMs, {shared_bytes_optin} bytes of shared memory a \
             block, {:.1} GiB, driver for CUDA {}.{}",
            capability / 10,
            capability % 10,
            *memory_bytes as f64 / (1_u64 << 30) as f64,
            driver.0,
            driver.1
        )
    }
}

/// This machine: the GPU, if there is one that can be used.
pub struct Machine {
    #[cfg(feature = "cuda")]
    device: host::Result<host::cuda::Gdn>,
}

impl Machine {
    /// Opens the first GPU. Of the engine's switches only STRATA_PREFILL_TIMING counts: the commands name their paths.
    pub fn open() -> Self {
        Self {
            #[cfg(feature = "cuda")]
            device: host::cuda::Gdn::new(0).and_then(|device| {
                let mut policy = Policy::default();
                policy.timing = Policy::from_env()?.timing;
                Ok(device.with_policy(policy))
            }),
        }
    }

    /// The GPU, or why there is none.
    #[cfg(feature = "cuda")]
    pub fn gpu(&self) -> Result<Gpu, String> {
        match (&self.device, libcuda_loader::load()) {
            (Ok(device), _) => Ok(gpu(device.facts())),
            // Without the library every call says no more than that it was not initialised.
            (Err(_), Err(no_driver)) => Err(no_driver.to_string()),
            (Err(error), Ok(())) => Err(error.to_string()),
        }
    }

    /// The GPU, or why there is none.
    #[cfg(not(feature = "cuda"))]
    pub fn gpu(&self) -> Result<Gpu, String> {
        Err("built without the feature cuda".into())
    }

    /// The GPU itself, for calls on memory that stays there.
    #[cfg(feature = "cuda")]
    pub fn device(&self) -> Option<&host::cuda::Gdn> {
        self.device.as_ref().ok()
    }

    /// Every path, those that cannot run with the reason.
    pub fn offers(&self) -> Vec<Offer> {
        let no_gpu = self.gpu().err();
        let unavailable = |path: Path| no_gpu.clone().filter(|_| path.backend() == Backend::Cuda);
        Path::all().into_iter().map(|path| Offer { path, unavailable: unavailable(path) }).collect()
    }

    /// Runs a call.
    ///
    /// # Errors
    /// As the path has them.
    pub fn run(&self, path: Path, call: Call<'_>, order: u64) -> host::Result<()> {
        match path {
            Path::Cpu(path) => cpu::run_by(call, path),
            Path::Emulator(kernel) => host::emulated::run(call, kernel, order),
            #[cfg(feature = "cuda")]
            Path::Cuda(kernel) => match &self.device {
                Ok(device) => device.run_on_slices(call, Some(kernel)).map(drop),
                Err(error) => unreachable!("a path that is not offered: {error}"),
            },
            #[cfg(not(feature = "cuda"))]
            Path::Cuda(_) => unreachable!("a path that is not offered"),
        }
    }
}

#[cfg(feature = "cuda")]
pub fn gpu(facts: &host::cuda::DeviceFacts) -> Gpu {
    Gpu {
        name: facts.name.clone(),
        driver: facts.driver,
        capability: facts.capability,
        multiprocessors: facts.multiprocessors,
        shared_bytes_optin: facts.shared_bytes_optin,
        memory_bytes: facts.memory_bytes,
    }
}

/// The paths to run: those on the backends asked for, or all; of them those that are named, or all.
///
/// # Errors
/// If a backend was asked for and cannot run, or a name is that of no path, or of none that can run.
pub fn choose(offers: &[Offer], on: &[Backend], named: &[String]) -> anyhow::Result<Vec<Offer>> {
    for offer in offers.iter().filter(|offer| on.contains(&offer.path.backend())) {
        if let Some(reason) = &offer.unavailable {
            bail!("--on {}: {reason}", offer.path.backend());
        }
    }
    let on_these = |offer: &&Offer| on.is_empty() || on.contains(&offer.path.backend());
    for name in named {
        if !offers.iter().any(|offer| offer.path.is_named(name)) {
            bail!("--path {name}: there is no such path; names are {}", names(offers).join(", "));
        }
        let meant: Vec<&Offer> = offers.iter().filter(on_these).filter(|offer| offer.path.is_named(name)).collect();
        let Some(first) = meant.first() else {
            let on: Vec<String> = on.iter().map(ToString::to_string).collect();
            bail!("--path {name}: it is not on {}", on.join(", "));
        };
        if let (Some(reason), true) = (&first.unavailable, meant.iter().all(|offer| offer.unavailable.is_some())) {
            bail!("--path {name}: {reason}");
        }
    }
    let is_named = |offer: &&Offer| named.is_empty() || named.iter().any(|name| offer.path.is_named(name));
    Ok(offers.iter().filter(on_these).filter(is_named).cloned().collect())
}

/// Every name that `--path` takes, whole ones aside.
fn names(offers: &[Offer]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let whole: Vec<String> = offers.iter().map(|offer| offer.path.to_string()).collect();
    for name in [1, 0].into_iter().flat_map(|word| whole.iter().filter_map(move |whole| whole.split(' ').nth(word))) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names.push(format!("or both as in \"{}\"", whole.first().map_or("", String::as_str)));
    names
}

/// That each name has a path among those that ran.
///
/// # Errors
/// With the reasons for which its paths were left out.
pub fn require_ran(named: &[String], ran: &[Path], skipped: &[Skip]) -> anyhow::Result<()> {
    for name in named {
        if ran.iter().any(|path| path.is_named(name)) {
            continue;
        }
        let mut reasons: Vec<String> = Vec::new();
        for Skip { path, reason, .. } in skipped.iter().filter(|skip| skip.path.is_named(name)) {
            let reason = format!("\n  {path}: {reason}");
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        bail!("--path {name}: it did not run{}", reasons.concat());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_gpu() -> Vec<Offer> {
        let unavailable = |path: Path| (path.backend() == Backend::Cuda).then(|| "no driver".to_owned());
        Path::all().into_iter().map(|path| Offer { path, unavailable: unavailable(path) }).collect()
    }

    #[test]
    fn what_is_asked_for_and_missing_is_an_error() {
        let error = choose(&without_gpu(), &[Backend::Cpu, Backend::Cuda], &[]).unwrap_err();
        assert_eq!(error.to_string(), "--on cuda: no driver");
    }

    #[test]
    fn what_is_missing_and_not_asked_for_stays_on_the_list() {
        assert_eq!(choose(&without_gpu(), &[], &[]).unwrap(), without_gpu());
        let cpu = choose(&without_gpu(), &[Backend::Cpu], &[]).unwrap();
        assert_eq!(cpu, cpu::Path::ALL.map(|path| Offer { path: Path::Cpu(path), unavailable: None }));
    }

    fn chosen(on: &[Backend], named: &[&str]) -> Result<Vec<String>, String> {
        let named: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
        let offers = choose(&without_gpu(), on, &named).map_err(|error| error.to_string())?;
        Ok(offers.iter().map(|offer| offer.path.to_string()).collect())
    }

    #[test]
    fn paths_are_chosen_by_whole_names() {
        assert_eq!(chosen(&[], &["chunked"]).unwrap(), ["cuda chunked", "cpu chunked", "emulator chunked"]);
        assert_eq!(chosen(&[Backend::Emulator], &["chunked"]).unwrap(), ["emulator chunked"]);
        assert_eq!(chosen(&[], &["cpu"]).unwrap(), ["cpu recurrent", "cpu chunked"]);
        assert_eq!(
            chosen(&[], &["emulator chunked_tensor", "recurrent"]).unwrap(),
            ["cpu recurrent", "emulator chunked_tensor"]
        );
    }

    #[test]
    fn a_name_of_nothing_that_can_run_is_an_error_with_the_reason() {
        let unknown = chosen(&[], &["chunk"]).unwrap_err();
        for word in
            ["--path chunk:", "recurrent_by_key_head", "chunked_tensor", "emulator", "cuda recurrent_by_key_head"]
        {
            assert!(unknown.contains(word), "{word}: {unknown}");
        }
        assert_eq!(chosen(&[], &["cuda chunked"]).unwrap_err(), "--path cuda chunked: no driver");
        assert_eq!(chosen(&[], &["cuda"]).unwrap_err(), "--path cuda: no driver");
        assert_eq!(
            chosen(&[Backend::Cpu], &["chunked_tensor"]).unwrap_err(),
            "--path chunked_tensor: it is not on cpu"
        );
    }

    #[test]
    fn a_named_path_that_was_left_out_is_an_error_and_another_is_not() {
        let heads = host::Heads::new(1, 1, host::HeadMap::Grouped).unwrap();
        let skip =
            |path| Skip { name: None, heads: (&heads).into(), path, tokens: vec![1, 2], reason: "slow".to_owned() };
        let (emulated, cpu) = (Path::Emulator(Kernel::Chunked), Path::Cpu(cpu::Path::Recurrent));
        let (named, skipped) = (["chunked".to_owned()], [skip(emulated), skip(emulated)]);
        let error = require_ran(&named, &[cpu], &skipped).unwrap_err().to_string();
        assert_eq!(error, "--path chunked: it did not run\n  emulator chunked: slow");
        require_ran(&named, &[emulated], &skipped).unwrap();
        require_ran(&[], &[], &skipped).unwrap();
    }
}
