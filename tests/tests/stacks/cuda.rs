//! CUDA's driver library and NVML over the software GPU (`peerdma run --gpu cuda`), by
//! C programs that judge themselves.

use system::{Counters, Run, judged, peerdma, skip};

fn cuda(program: &std::path::Path) -> Run {
    Run::hca(&program.display().to_string()).option("--gpu").option("cuda")
}

#[test]
fn memory_is_a_gpus_and_an_hca_reaches_it() {
    let program = match system::c_program("cuda_memory") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let counters = Counters::new();
    judged(cuda(&program).env("PEERDMA_COUNTERS", counters.file()), 132);
    let to_gpu = |line: &str| line.contains(" BUS_ADDR ") && !line.ends_with(" 0 0");
    assert!(counters.text().lines().any(to_gpu), "{}", counters.text());
}

/// What is freed can be had again at the limit of descriptors too.
#[test]
fn allocations_end_at_the_limit_of_descriptors_and_come_back() {
    let program = match system::c_program("cuda_memory") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let run = Run::hca("sh -c").arg("ulimit -n 200; exec $PROGRAM few");
    judged(run.env("PROGRAM", &program).option("--gpu").option("cuda"), 5);
}

#[test]
fn work_is_done_in_order_and_memory_is_shared() {
    match system::c_program("cuda_order") {
        Ok(program) => drop(judged(cuda(&program), 99)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn memory_is_a_gpus_where_the_program_has_an_mmap_of_its_own() {
    match system::c_program("cuda_wrapped") {
        Ok(program) => drop(judged(cuda(&program), 6)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn a_stream_waits_for_what_somebody_writes() {
    match system::c_program("cuda_waits") {
        Ok(program) => drop(judged(cuda(&program), 119)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn processes_share_events() {
    match system::c_program("cuda_shared_events") {
        Ok(program) => drop(judged(cuda(&program), 33)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn arrays_hold_what_is_copied_to_them() {
    match system::c_program("cuda_arrays") {
        Ok(program) => drop(judged(cuda(&program), 85)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn gpus_are_told_of_by_nvml() {
    match system::c_program("cuda_nvml") {
        Ok(program) => drop(judged(cuda(&program), 52)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn what_comes_to_an_end_takes_along_what_it_has() {
    match system::c_program("cuda_ends") {
        Ok(program) => drop(judged(cuda(&program), 28)),
        Err(reason) => skip!("{reason}"),
    }
}

/// Calls say that there is no memory, and the program goes on.
#[test]
fn calls_are_refused_where_the_systems_memory_ends() {
    match system::c_program("cuda_ends") {
        Ok(program) => {
            let line = format!("{} little", program.display());
            judged(Run::hca(&line).option("--gpu").option("cuda"), 16);
        }
        Err(reason) => skip!("{reason}"),
    }
}

/// What `peerdma gpu providers` asks of NVIDIA's driver, this one answers.
#[test]
fn the_cuda_provider_allocates_and_exports() {
    let line = format!("{} gpu providers", peerdma().display());
    let said = Run::hca(&line).option("--gpu").option("cuda").finish().ok().stdout;
    let works = |line: &&str| line.starts_with("cuda ") && line.contains("peerdma software GPU");
    assert_eq!(said.lines().filter(works).count(), 2, "{said}");
}

/// A kernel that is not executed is named in a line whatever the settings.
#[test]
fn a_kernel_is_named_and_not_executed() {
    let program = match system::c_program("cuda_order") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let said = cuda(&program).finish().ok().stderr;
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("twice")).collect();
    assert!(lines.len() == 1 && lines[0].contains("CUDA_ERROR_NOT_SUPPORTED"), "{said}");
}

/// Without `--gpu cuda` programs do not find it, and with it no device that is not visible.
#[test]
fn the_library_is_found_only_where_it_is_asked_for() {
    let places = |run: Run| run.arg("echo $LD_LIBRARY_PATH").finish().ok().stdout;
    let has_it = |places: String| places.trim().split(':').any(|place| place.ends_with("/cuda"));
    assert!(!has_it(places(Run::hca("sh -c"))));
    assert!(has_it(places(Run::hca("sh -c").option("--gpu").option("cuda"))));
    let program = match system::c_program("cuda_order") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let none = cuda(&program).env("CUDA_VISIBLE_DEVICES", "").finish();
    assert!(none.stdout.contains("NOT cuInit: CUDA_ERROR_NO_DEVICE"), "{none}");
}
