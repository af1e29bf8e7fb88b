//! A program that calls `cust` links without libcuda, and says so in words where there is no driver.

use cust::error::CudaError;

/// One test, since the order matters: the process must not know libcuda before it is loaded.
#[test]
fn cust_runs_with_and_without_a_driver() {
    #[cfg(target_os = "linux")]
    assert!(
        !std::fs::read_to_string("/proc/self/maps").unwrap().contains("libcuda.so"),
        "the program is linked with libcuda"
    );
    assert_eq!(
        cust::init(cust::CudaFlags::empty()),
        Err(CudaError::NotInitialized),
        "before load, every symbol answers that there is no driver"
    );

    let loaded = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(libcuda_loader::load));
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(loaded.windows(2).all(|pair| pair[0] == pair[1]), "{loaded:?}");
    assert_eq!(libcuda_loader::load(), loaded[0]);

    let initialised = cust::init(cust::CudaFlags::empty());
    match &loaded[0] {
        Ok(()) => assert_ne!(initialised, Err(CudaError::NotInitialized)),
        Err(reason) => {
            assert_eq!(initialised, Err(CudaError::NotInitialized));
            eprintln!("{reason}");
        }
    }
}
