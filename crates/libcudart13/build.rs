//! Builds `libcudart.so.13`.

#[path = "../libcudart/library.rs"]
mod library;

fn main() {
    library::build(13);
}
