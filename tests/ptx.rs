//! The committed PTX as text (cases 29, 37, 56): what code generators have got wrong, and what old drivers and cards refuse.
//! `cargo xtask verify-ptx` asks NVIDIA's assembler as well; this needs nothing but the files.
#![forbid(unsafe_code)]
use std::collections::BTreeSet;

use cuda_std::kernel::{Architecture, Arguments, EntryFacts};
use cuda_std::{Global, GlobalMut};
use kernels_gpu::kernels::recurrence::Args;
use kernels_gpu::table;

/// A file, the cards that it is for, and the newest PTX version that its first drivers take.
struct File {
    architecture: Architecture,
    newest: (u32, u32),
    text: &'static str,
}

const FILES: [File; 3] = [
    File { architecture: Architecture::From(75), newest: (6, 3), text: include_str!("../host/ptx/gdn_sm_75.ptx") },
    File { architecture: Architecture::From(80), newest: (7, 0), text: include_str!("../host/ptx/gdn_sm_80.ptx") },
    File { architecture: Architecture::Only(90), newest: (8, 0), text: include_str!("../host/ptx/gdn_sm_90a.ptx") },
];

/// One entry's text: its parameters, what stands between, its body.
struct Entry<'a> {
    symbol: &'a str,
    parameters: Vec<&'a str>,
    directives: &'a str,
    body: &'a str,
}

impl File {
    /// The PTX target: plain, or with the `a` that ties it to one card.
    fn target(&self) -> String {
        self.architecture.target()
    }

    /// The text without comments.
    fn lines(&self) -> impl Iterator<Item = &'static str> {
        self.text.lines().map(|line| line.split("//").next().unwrap().trim()).filter(|line| !line.is_empty())
    }

    fn directive(&self, name: &str) -> &'static str {
        self.lines().find_map(|line| line.strip_prefix(name)).expect(name).trim()
    }

    fn entries(&self) -> Vec<Entry<'static>> {
        let parts = self.text.split(".entry ").skip(1);
        parts
            .map(|part| {
                let (head, body) = part.split_once("\n{").expect("a body");
                let (symbol, parameters) = head.split_once('(').expect("parameters");
                let (parameters, directives) = parameters.split_once(')').expect("the parameters' end");
                let body = body.split("\n}").next().unwrap();
                Entry { symbol: symbol.trim(), parameters: parameters.split(',').collect(), directives, body }
            })
            .collect()
    }

    fn expected(&self) -> Vec<EntryFacts> {
        table::entries().into_iter().filter(|entry| entry.architecture.fits_in(self.architecture)).collect()
    }
}

#[test]
fn versions_and_targets_are_what_old_drivers_and_cards_take() {
    for file in &FILES {
        let version = file.directive(".version");
        let (major, minor) = version.split_once('.').unwrap();
        let version: (u32, u32) = (major.parse().unwrap(), minor.parse().unwrap());
        assert!(version <= file.newest, "{version:?} for {}", file.target());
        assert_eq!(file.directive(".target"), file.target());
        assert_eq!(file.directive(".address_size"), "64");
    }
}

/// Only the file for Hopper is tied to one card, and no other card gets it.
#[test]
fn cards_other_than_hopper_get_files_that_later_cards_run() {
    assert_eq!(FILES.map(|file| file.architecture), table::FILES);
    let targets = FILES.map(|file| file.directive(".target"));
    assert_eq!(targets, ["sm_75", "sm_80", "sm_90a"]);
    for card in 0..200 {
        let file = table::file_for(card).map(|file| FILES.iter().find(|one| one.architecture == file).unwrap());
        let expected = match card {
            ..75 => None,
            75..80 => Some("sm_75"),
            90 => Some("sm_90a"),
            _ => Some("sm_80"),
        };
        assert_eq!(file.map(|file| file.directive(".target")), expected, "{card}");
    }
}

/// A Hopper card that takes the older file, for its driver's sake, loses the kernels for it alone and no other.
#[test]
fn the_file_for_hopper_has_what_the_other_has() {
    let [_, plain, hopper] = FILES.map(|file| file.expected());
    for entry in &plain {
        assert!(hopper.iter().any(|one| one.symbol == entry.symbol), "{}", entry.symbol);
    }
    let more = hopper.iter().filter(|entry| !plain.iter().any(|one| one.symbol == entry.symbol));
    assert!(more.into_iter().all(|entry| entry.architecture == Architecture::Only(90)));
}

#[test]
fn entries_are_those_of_the_table() {
    for file in &FILES {
        let found: BTreeSet<&str> = file.entries().iter().map(|entry| entry.symbol).collect();
        let expected = file.expected();
        assert_eq!(found, expected.iter().map(|entry| entry.symbol).collect(), "{}", file.target());
        assert_eq!(found.len(), file.entries().len());
        for entry in file.entries() {
            let facts = expected.iter().find(|facts| facts.symbol == entry.symbol).unwrap();
            let bound = format!(".maxntid {}, 1, 1", facts.threads);
            assert!(entry.directives.contains(&bound), "{}: {}", entry.symbol, entry.directives);
        }
    }
}

/// Arguments are numbers, pointers and arrays of words: by-value structs have been laid out wrongly.
#[test]
fn parameters_are_scalars_or_words() {
    for file in &FILES {
        for entry in file.entries() {
            for parameter in &entry.parameters {
                let parameter = parameter.trim();
                let mut words = parameter.split_whitespace();
                assert_eq!(words.next(), Some(".param"), "{}: {parameter}", entry.symbol);
                if parameter.starts_with(".param .align 4 .b8 ") {
                    continue;
                }
                assert!(matches!(words.next(), Some(".u64" | ".u32" | ".f32")), "{}: {parameter}", entry.symbol);
                assert!(!parameter.contains('['), "{}: {parameter}", entry.symbol);
            }
        }
    }
}

/// The launch passes as many arguments as the recurrent entries have parameters, of the same sizes.
#[test]
fn the_recurrent_entries_take_what_a_launch_passes() {
    let args = Args {
        q: Global::new(std::ptr::null()),
        q_token_stride: 0,
        q_head_stride: 0,
        k: Global::new(std::ptr::null()),
        k_token_stride: 0,
        k_head_stride: 0,
        v: Global::new(std::ptr::null()),
        v_token_stride: 0,
        v_head_stride: 0,
        g: Global::new(std::ptr::null()),
        g_token_stride: 0,
        g_head_stride: 0,
        beta: Global::new(std::ptr::null()),
        beta_token_stride: 0,
        beta_head_stride: 0,
        out: GlobalMut::new(std::ptr::null_mut()),
        out_token_stride: 0,
        out_head_stride: 0,
        initial_state: Global::new(std::ptr::null()),
        final_state: GlobalMut::new(std::ptr::null_mut()),
        state_head_stride: 0,
        state_row_stride: 0,
        scale: 0.0,
        tokens: 0,
        num_key_heads: 0,
        values_per_key: 0,
        head_map: 0,
    };
    for file in &FILES {
        for entry in file.entries().iter().filter(|entry| entry.symbol.starts_with("gdn_recurrent")) {
            assert_eq!(entry.parameters.len(), args.pointers().len(), "{}", entry.symbol);
            let small = entry.parameters.iter().filter(|parameter| !parameter.contains(".u64")).count();
            assert_eq!(small, 5, "{}", entry.symbol);
        }
    }
}

/// What is wrong with an instruction or a declaration.
fn fault_of(line: &str) -> Option<&'static str> {
    let instruction = line.strip_prefix('@').map_or(line, |guarded| guarded.split_once(' ').unwrap().1);
    let mut parts = instruction.trim().split([' ', '\t', ';']).next().unwrap().split('.');
    let operation = parts.next().unwrap();
    let mut names = |spaces: &[&str]| parts.any(|part| spaces.contains(&part));
    match operation {
        "ld" | "st" | "ldu" | "atom" | "red" | "prefetch" if !names(&["global", "shared", "param", "const"]) => {
            return Some("a generic access");
        }
        "call" | "alloca" | "stacksave" => return Some("a call or a stack"),
        _ => {}
    }
    [".local", "__local_depot", ".func", "printf", "malloc"].into_iter().find(|word| line.contains(word))
}

/// Every access names its memory, and there is no memory of a thread's own: no stack, no spills, no calls.
#[test]
fn accesses_name_their_memory() {
    for file in &FILES {
        assert!(file.lines().filter(|line| line.starts_with("ld.global")).count() > 10, "{}", file.target());
        for line in file.lines() {
            if let Some(fault) = fault_of(line) {
                panic!("{}: {fault}: {line}", file.target());
            }
        }
    }
    for good in
        ["ld.global.f32 %f1, [%rd1];", "@%p1 st.shared.v4.b32 [%r1], {%r2};", "ld.volatile.global.u32 %r1, [%rd1];"]
    {
        assert_eq!(fault_of(good), None, "{good}");
    }
    for bad in ["ld.f32 %f1, [%rd1];", "@!%p1 st.u32 [%rd1], %r1;", "st.local.b32 [%rd1], %r1;", "call.uni f, (x);"] {
        assert!(fault_of(bad).is_some(), "{bad}");
    }
    assert!(fault_of(".local .align 16 .b8 __local_depot0[64];").is_some());
}

/// The file for Turing has nothing that Turing lacks.
#[test]
fn the_oldest_file_asks_for_nothing_new() {
    for line in FILES[0].lines() {
        for word in ["cp.async", ".bf16", "mma.", "mbarrier", "redux", ".L2::"] {
            assert!(!line.contains(word), "{line}");
        }
    }
}

/// What only Hopper has stands in the file for Hopper alone.
#[test]
fn files_for_later_cards_have_nothing_of_hoppers_own() {
    for file in FILES.iter().filter(|file| matches!(file.architecture, Architecture::From(_))) {
        for line in file.lines() {
            for word in ["wgmma", "setmaxnreg", "fence.proxy", "cp.async.bulk"] {
                assert!(!line.contains(word), "{}: {line}", file.target());
            }
        }
    }
}

/// Fused multiply-adds are where the source has them, and nothing flushes subnormals or approximates: the emulator could
/// not give the same bits.
#[test]
fn arithmetic_is_what_the_emulator_computes() {
    for file in &FILES {
        let exact = |symbol: &str| symbol.starts_with("gdn_recurrent") || symbol == "gdn_decode";
        for entry in file.entries().iter().filter(|entry| exact(entry.symbol)) {
            for line in entry.body.lines() {
                for word in [".ftz", ".approx", "ex2", "mad.f32", "div.full"] {
                    assert!(!line.contains(word), "{}: {line}", entry.symbol);
                }
            }
            assert!(entry.body.contains("fma.rn.f32"), "{}", entry.symbol);
        }
    }
}
