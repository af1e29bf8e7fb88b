//! Which kernel a call takes, through the public interface: cards, limits of scratch, the engine's switches (cases 38, 43).
#![forbid(unsafe_code)]
use std::process::Command;

use host::inputs::{Family, Inputs};
use host::{Card, HeadMap, Kernel, PathChoice, Policy, Reason, plan};
use kernels_gpu::kernels::{chunk_prep_tensor, chunk_scan_tensor};
use tests::{ORDERS, Output, Path, gpu, heads, run, same_bits};

const H200: Card = Card::new(90, 132, 232_448);

/// Every limit of shared memory that there is: what is chosen fits, else it goes token by token and says why (case 38).
#[test]
fn what_is_chosen_fits_in_shared_memory() {
    for (num_k_heads, num_v_heads) in [(16, 16), (16, 32), (16, 48), (16, 64)] {
        for shared_bytes_optin in [49_152, 65_536, 101_376, 166_912, 232_448] {
            let card = Card { shared_bytes_optin, ..H200 };
            let mut policy = Policy::default();
            policy.enough_multiprocessors = false;
            let launch = plan(&card, heads(num_k_heads, num_v_heads, HeadMap::Grouped), 2048, &policy).unwrap();
            let ratio = num_v_heads / num_k_heads;
            let scan = chunk_scan_tensor::KERNEL.entries[0].shared_bytes;
            let most = scan.max(chunk_prep_tensor::KERNEL.entries[ratio - 1].shared_bytes);
            match launch.kernel {
                Kernel::ChunkedTensor => {
                    assert_eq!(launch.reason, Reason::Selected);
                    assert!(most <= shared_bytes_optin, "{most} bytes of {shared_bytes_optin}");
                }
                Kernel::RecurrentByKeyHead => {
                    let Reason::SharedMemory { have, need } = launch.reason else { panic!("{launch:?}") };
                    assert!(have == shared_bytes_optin && need > have, "{launch:?}");
                }
                other => panic!("{other:?} with {shared_bytes_optin} bytes"),
            }
            // Every card that the kernels are for gives 99 KB.
            if shared_bytes_optin >= 101_376 {
                assert_eq!(launch.kernel, Kernel::ChunkedTensor, "{shared_bytes_optin} bytes");
            }
        }
    }
}

/// A limit of 64 MB makes more segments of a long prompt, not a slower kernel; what is planned is within it (case 43).
#[test]
fn a_limit_of_scratch_makes_segments() {
    let heads = heads(16, 48, HeadMap::Grouped);
    for limit in [64 << 20, 4 << 20, 2 << 20] {
        let mut policy = Policy::default();
        policy.max_scratch_bytes = limit;
        let launch = plan(&H200, heads, 32_768, &policy).unwrap();
        assert_eq!((launch.kernel, launch.reason), (Kernel::ChunkedTensor, Reason::Selected));
        assert!(launch.scratch_bytes <= limit && launch.launches >= 48, "{launch:?}");
    }
    // Scratch does not grow with the prompt, once segments are as long as they get.
    let bytes = |tokens| plan(&H200, heads, tokens, &Policy::default()).unwrap().scratch_bytes;
    assert!(bytes(2048) < bytes(8192) && bytes(8192) < bytes(16_384));
    assert_eq!(bytes(16_384), bytes(1 << 20));
}

/// Set in a child process: which path the switches around it have to lead to.
const EXPECTED: &str = "GDN_TEST_EXPECTED_PATH";

/// The child's part of the test below; without its variable it has nothing to do.
#[test]
fn switches_in_this_process() {
    let Ok(expected) = std::env::var(EXPECTED) else { return };
    let policy = Policy::from_env().unwrap();
    let inputs = Inputs::seeded(heads(1, 3, HeadMap::Tiled), 130, Family::Base, 1);
    let kernel = match expected.as_str() {
        "recurrent" => Kernel::RecurrentByColumn,
        "chunked" => Kernel::ChunkedTensor,
        other => panic!("{other}"),
    };
    let mut output = Output::poisoned(&inputs);
    host::emulated::run_with(inputs.call(&mut output.out, &mut output.state), &policy, ORDERS[0]).unwrap();
    same_bits(&inputs.heads, &run(Path::Emulated(kernel), &inputs), &output).unwrap();

    if let Some(gdn) = gpu() {
        let mut output = Output::poisoned(&inputs);
        let call = inputs.call(&mut output.out, &mut output.state);
        let launch = gdn.with_policy(policy.clone()).run_on_slices(call, None).unwrap();
        // A card may be too old or too small for the other path.
        if policy.path == PathChoice::Recurrent || launch.kernel == Kernel::ChunkedTensor {
            same_bits(&inputs.heads, &run(Path::Cuda(kernel), &inputs), &output).unwrap();
        }
    }
}

/// Unset switches, and 0, give the bits of the sequential kernels; 1 and 2 those of the chunked ones.
#[test]
fn unset_switches_give_the_sequential_bits() {
    for (value, expected) in
        [(None, "recurrent"), (Some("0"), "recurrent"), (Some("1"), "chunked"), (Some("2"), "chunked")]
    {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "dispatch::switches_in_this_process", "--nocapture"]).env(EXPECTED, expected);
        for name in ["STRATA_GDN_CHUNKED", "STRATA_GDN_KEYHEAD", "STRATA_EMULATE_CC", "STRATA_PREFILL_TIMING"] {
            child.env_remove(name);
        }
        if let Some(value) = value {
            child.env("STRATA_GDN_CHUNKED", value);
        }
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{value:?}: {said}{}", {
            String::from_utf8_lossy(&output.stderr)
        });
    }
}
