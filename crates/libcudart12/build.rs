//! Builds `libcudart.so.12`.

#[path = "../libcudart/library.rs"]
mod library;

fn main() {
    library::build(12);
}
