//! peerdma
fn main() {}
