#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerdma_fuzz::dmabuf::control_block(data));
