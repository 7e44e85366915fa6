#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peerdma_fuzz::wire::mad_parse(data));
