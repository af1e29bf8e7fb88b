//! What must be true of a PTX file before any card sees it. Each rule stands for a fault that code generators have
//! shipped: slow or wrong, and invisible in the results of the card at hand.

use cuda_std::kernel::{Architecture, EntryFacts};

use crate::code;
use crate::ptx_text::{self, PtxEntry};
use crate::targets::Target;

/// State spaces that an access may name.
const STATE_SPACES: [&str; 4] = ["global", "shared", "param", "const"];

/// Every fault of the file, as sentences; `expected_barriers` says how many a kernel's source has.
pub fn faults(ptx: &str, target: Target, expected_barriers: &dyn Fn(&EntryFacts) -> usize) -> Vec<String> {
    let mut faults = version_fault(ptx, target).into_iter().collect::<Vec<_>>();
    let found = ptx_text::entries(ptx);
    let expected = target.entries();
    for entry in &found {
        let Some(facts) = expected.iter().find(|facts| facts.symbol == entry.name) else {
            faults.push(format!("{}: no kernel declares this entry for {}", entry.name, target.architecture.target()));
            continue;
        };
        faults.extend(entry_faults(entry, target, expected_barriers(facts)));
    }
    for facts in expected {
        if !found.iter().any(|entry| entry.name == facts.symbol) {
            faults.push(format!("{}: the entry is missing", facts.symbol));
        }
    }
    faults
}

fn version_fault(ptx: &str, target: Target) -> Option<String> {
    let version = ptx_text::version(ptx);
    let (major, minor) = target.version;
    if version.is_some_and(|version| version <= target.version) {
        return None;
    }
    let found = version.map_or("none".to_owned(), |(major, minor)| format!("{major}.{minor}"));
    Some(format!(
        "PTX version {found} where drivers from {} on should do, which take {major}.{minor}",
        target.driver_floor
    ))
}

/// The faults inside one entry.
fn entry_faults(entry: &PtxEntry<'_>, target: Target, expected_barriers: usize) -> Vec<String> {
    let mut faults = Vec::new();
    for parameter in &entry.parameters {
        // An array of words has no inner layout that could be got wrong.
        if parameter.contains('[') && !parameter.contains(".align 4 .b8") {
            faults.push(format!("parameter is no scalar and no words: {}", parameter.trim()));
        }
    }
    for line in &entry.body {
        faults.extend(line_fault(line, target).map(|fault| format!("{fault}: {}", line.trim())));
    }
    let barriers = barriers(entry);
    if barriers != expected_barriers {
        faults.push(format!("{barriers} block barriers, its source has {expected_barriers}"));
    }
    faults.into_iter().map(|fault| format!("{}: {fault}", entry.name)).collect()
}

/// The block barriers in an entry's PTX.
pub fn barriers(entry: &PtxEntry<'_>) -> usize {
    let is_barrier = |operation: &str| {
        operation.starts_with("bar.sync")
            || operation.starts_with("barrier.sync")
            || operation.starts_with("barrier.cta")
    };
    entry.body.iter().filter_map(|line| operation(line)).filter(|operation| is_barrier(operation)).count()
}

/// The calls of `sync_threads` and `sync_roles` in a kernel's source, its unit tests aside.
pub fn barriers_in_source(source: &str) -> usize {
    let code = code::code_only(source);
    let kernel = code.split("#[cfg(test)]").next().unwrap_or_default();
    kernel.matches("sync_threads()").count() + kernel.matches("sync_roles::<").count()
}

/// The fault of one line of a body.
fn line_fault(line: &str, target: Target) -> Option<&'static str> {
    if line.trim_start().starts_with(".local") {
        return Some("stack frame");
    }
    let operation = operation(line)?;
    let mut parts = operation.split('.');
    match parts.next()? {
        "ld" | "ldu" | "st" | "atom" | "red" => {
            // `shared::cta` is a shared access too.
            let mut spaces = parts.map(|part| part.split("::").next().unwrap_or_default());
            if operation.contains(".local") {
                Some("access to a stack frame")
            } else if spaces.any(|part| STATE_SPACES.contains(&part)) {
                None
            } else {
                Some("generic access")
            }
        }
        "cvta" if operation.contains(".shared") => Some("conversion between shared and generic addresses"),
        "cvta" if operation.contains(".local") => Some("address of a stack frame"),
        "call" => Some("call"),
        _ => missing(operation, target.architecture),
    }
}

/// The target that an operation needs, where some card that the file is for lacks it.
fn missing(operation: &str, file: Architecture) -> Option<&'static str> {
    // The longer name stands first.
    let needs = [
        ("wgmma", Architecture::Only(90), "needs sm_90a"),
        ("setmaxnreg", Architecture::Only(90), "needs sm_90a"),
        ("fence.proxy", Architecture::From(90), "needs sm_90"),
        ("cp.async.bulk", Architecture::From(90), "needs sm_90"),
        ("cp.async", Architecture::From(80), "needs sm_80"),
    ];
    let (_, need, fault) = needs.into_iter().find(|(name, ..)| operation.starts_with(name))?;
    (!need.fits_in(file)).then_some(fault)
}

/// The operation with its modifiers, without a predicate: `ld.shared.v4.b32`.
fn operation(line: &str) -> Option<&str> {
    let mut words = line.trim().trim_start_matches('{').split_whitespace();
    let first = words.next()?;
    let operation = if first.starts_with('@') { words.next()? } else { first };
    Some(operation.trim_end_matches(';'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::TARGETS;

    const SM_75: Target = TARGETS[0];
    const SM_80: Target = TARGETS[1];
    const SM_90A: Target = TARGETS[2];

    fn entry<'text>(parameters: &[&'text str], body: &[&'text str]) -> PtxEntry<'text> {
        PtxEntry { name: "k", parameters: parameters.to_vec(), body: body.to_vec() }
    }

    #[track_caller]
    fn assert_faults(line: &str, target: Target, expected: Option<&str>) {
        assert_eq!(line_fault(line, target), expected, "{line}");
    }

    #[test]
    fn accesses_name_their_state_space() {
        for line in [
            "\tld.param.b64 \t%rd1, [k_param_0];",
            "\t@%p1 ld.global.nc.v4.b32 \t{%r1, %r2, %r3, %r4}, [%rd1];",
            "\tst.shared::cta.v4.b32 \t[%rd1], {%r1, %r2, %r3, %r4};",
            "\tld.volatile.shared.b32 \t%r1, [gpu_dynamic_shared+16];",
            "\tld.const.b32 \t%r1, [table];",
            "\tred.relaxed.gpu.global.add.f32 \t[%rd1], %r1;",
            "\tcvta.to.global.u64 \t%rd1, %rd2;",
            "\tldmatrix.sync.aligned.m8n8.x4.shared.b16 \t{%r1, %r2, %r3, %r4}, [%r5];",
            "\tstacksave.u64 \t%rd1;",
        ] {
            assert_faults(line, SM_80, None);
        }
    }

    #[test]
    fn generic_accesses_are_faults() {
        assert_faults("\tst.b32 \t[%rd1], %r1;", SM_80, Some("generic access"));
        assert_faults("\t@!%p2 ld.v4.b32 \t{%r1, %r2, %r3, %r4}, [%rd1];", SM_80, Some("generic access"));
        assert_faults("\tatom.add.f32 \t%r1, [%rd1], %r2;", SM_80, Some("generic access"));
        // What naming a shared symbol without its address space comes to.
        let body = ["\tcvta.shared.u64 \t%rd1, gpu_dynamic_shared;", "\tst.f32 \t[%rd1], %r1;"];
        let faults = entry_faults(&entry(&[], &body), SM_80, 0);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[1].contains("generic access: st.f32"), "{faults:?}");
    }

    #[test]
    fn stack_frames_are_faults() {
        assert_faults("\t.local .align 16 .b8 \t__local_depot0[128];", SM_80, Some("stack frame"));
        assert_faults("\tst.local.b32 \t[%rd1], %r1;", SM_80, Some("access to a stack frame"));
        assert_faults("\tcvta.local.u64 \t%SP, %SPL;", SM_80, Some("address of a stack frame"));
        assert_faults("\tcall.uni panic, ();", SM_80, Some("call"));
    }

    #[test]
    fn a_duplicated_barrier_is_a_fault() {
        let body = ["\t@%p1 bra \t$L1;", "\tbar.sync \t0;", "$L1:", "\tbar.sync \t0;", "\tbar.warp.sync \t-1;"];
        let duplicated = entry(&[], &body);
        assert_eq!(barriers(&duplicated), 2);
        assert_eq!(entry_faults(&duplicated, SM_80, 1), ["k: 2 block barriers, its source has 1"]);
        assert!(entry_faults(&duplicated, SM_80, 2).is_empty());
        let newer = entry(&[], &["\tbarrier.cta.sync.aligned \t0;"]);
        assert_eq!(barriers(&newer), 1);
    }

    #[test]
    fn barriers_of_the_source_are_calls() {
        let source = "use cuda_std::thread::sync_threads;\n// sync_threads() here\nunsafe { sync_threads() };\n\
                      thread::sync_threads();\n#[cfg(test)]\nmod tests { fn f() { sync_threads() } }";
        assert_eq!(barriers_in_source(source), 2);
    }

    #[test]
    fn parameters_are_scalars_or_words() {
        for good in ["\t.param .u64 .ptr .align 1 k_param_0,", "\t.param .align 4 .b8 k_param_0[16],"] {
            assert!(entry_faults(&entry(&[good], &[]), SM_80, 0).is_empty());
        }
        let bad = entry(&["\t.param .align 8 .b8 k_param_0[16]"], &[]);
        assert_eq!(entry_faults(&bad, SM_80, 0).len(), 1);
    }

    #[test]
    fn old_targets_have_no_asynchronous_copies() {
        let line = "\tcp.async.cg.shared.global [%r1], [%rd1], 16;";
        assert_faults(line, SM_80, None);
        assert_faults(line, SM_75, Some("needs sm_80"));
    }

    #[test]
    fn what_only_hopper_has_is_in_its_file_alone() {
        for (line, fault) in [
            ("\twgmma.fence.sync.aligned;", "needs sm_90a"),
            (
                "\twgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;",
                "needs sm_90a",
            ),
            ("\tsetmaxnreg.inc.sync.aligned.u32 240;", "needs sm_90a"),
            ("\tfence.proxy.async.shared::cta;", "needs sm_90"),
            ("\tcp.async.bulk.commit_group;", "needs sm_90"),
        ] {
            assert_faults(line, SM_90A, None);
            assert_faults(line, SM_80, Some(fault));
            assert_faults(line, SM_75, Some(fault));
        }
    }

    #[test]
    fn files_hold_their_entries_and_no_newer_version() {
        let faults = |ptx: &str| faults(ptx, SM_75, &|_| 0);
        let missing = SM_75.entries().len();
        assert_eq!(faults(".version 6.3\n").len(), missing);
        assert_eq!(faults(".version 7.8\n").len(), missing + 1);
        assert_eq!(faults("").len(), missing + 1);
        assert_eq!(faults(".version 6.3\n.visible .entry stranger(\n)\n{\n\tret;\n}\n").len(), missing + 1);
    }
}
