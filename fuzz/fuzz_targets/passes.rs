#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerdma_fuzz::shm::passes(data));
