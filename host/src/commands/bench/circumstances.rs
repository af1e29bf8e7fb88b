//! What a number depends on besides the code: when, with which command, commit, processor, driver and clocks.
#![forbid(unsafe_code)]
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

/// Stands for what could not be found out.
pub const UNKNOWN: &str = "unknown";

/// Names the commit where the program runs without its repository.
const COMMIT_VARIABLE: &str = "GDN_COMMIT";

/// The circumstances of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Circumstances {
    /// In UTC, RFC 3339.
    pub date: String,
    pub command: String,
    /// `-dirty` at its end where files under version control differ from it.
    pub commit: String,
    pub processor: String,
}

impl Circumstances {
    /// Those of this process.
    pub fn here() -> Self {
        let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
        Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command: ["host".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" "),
            commit: std::env::var(COMMIT_VARIABLE).ok().or_else(commit).unwrap_or_else(|| UNKNOWN.to_owned()),
            processor: processor().unwrap_or_else(|| UNKNOWN.to_owned()),
        }
    }
}

fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    // A file that is not under version control counts only through one that is.
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() { commit } else { commit + "-dirty" })
}

/// The processor's name, where the system has it in a file.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// What `nvidia-smi` says while the device works. Everything is text with its unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Clocks {
    pub driver: String,
    pub multiprocessors: String,
    pub multiprocessors_most: String,
    pub memory: String,
    pub power: String,
    pub power_limit: String,
    pub temperature: String,
}

const QUERY: &str =
    "--query-gpu=driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu";

/// It answers in less than a second or two; a broken driver lets it hang.
const MOST_WAITING: Duration = Duration::from_secs(10);

/// Asks for the clocks of the device at `address` on the bus, and calls `work` until the answer is there, so that they
/// are not those of a device at rest. None without `nvidia-smi`.
///
/// # Errors
/// Those of `work`.
pub fn clocks<E>(address: &str, mut work: impl FnMut() -> Result<(), E>) -> Result<Option<Clocks>, E> {
    let mut command = Command::new("nvidia-smi");
    command.args(["-i", address, QUERY, "--format=csv,noheader"]);
    let Ok(mut child) = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn() else {
        return Ok(None);
    };
    let started = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        let worked = work();
        if worked.is_err() || started.elapsed() > MOST_WAITING {
            stop(&mut child);
            return worked.map(|()| None);
        }
    }
    let mut answer = String::new();
    let read = child.stdout.take().map(|mut output| output.read_to_string(&mut answer));
    Ok(read.and_then(Result::ok).and_then(|_| parse(&answer)))
}

/// Nothing can be done about a child that does not end.
fn stop(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn parse(answer: &str) -> Option<Clocks> {
    let fields: Vec<String> = answer.lines().next()?.split(',').map(|field| field.trim().to_owned()).collect();
    let [driver, multiprocessors, multiprocessors_most, memory, power, power_limit, temperature] =
        fields.try_into().ok()?;
    Some(Clocks { driver, multiprocessors, multiprocessors_most, memory, power, power_limit, temperature })
}

impl std::fmt::Display for Clocks {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { driver, multiprocessors, multiprocessors_most, memory, power, power_limit, temperature } = self;
        write!(
            formatter,
            "driver {driver}; while measuring SMs at {multiprocessors} (at most {multiprocessors_most}), memory at \
             {memory}, {power} of {power_limit}, {temperature} C"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_nvidia_smi() {
        let clocks = parse("580.95.05, 1980 MHz, 1980 MHz, 3201 MHz, 412.33 W, 700.00 W, 41\n").expect("seven fields");
        assert_eq!((clocks.driver.as_str(), clocks.memory.as_str()), ("580.95.05", "3201 MHz"));
        assert!(clocks.to_string().ends_with("41 C"));
        assert_eq!(parse("No devices were found\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn the_date_is_in_utc() {
        let date = Circumstances::here().date;
        assert!(date.len() == 20 && date.ends_with('Z'), "{date}");
    }
}
