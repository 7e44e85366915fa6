#!/bin/sh
# Packages the crates that are to be published, as `cargo publish --dry-run` does, and builds what
# is in the packages, one over the other. Nothing is asked of the network, and nothing is kept
# outside the target folder: cargo's own trial build unpacks one package among the registry's, and
# would take the same again as long as its version stays.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
"$cargo" package --offline --locked --allow-dirty --no-verify --quiet \
    --package peerdma-verbs-sys --package peerdma
rm -rf target/publishable
mkdir -p target/publishable
for package in target/package/peerdma-*.crate; do
    tar -xzf "$package" -C target/publishable
done
cd target/publishable
sys=$(echo peerdma-verbs-sys-*)
api=$(echo peerdma-[0-9]*)
# Else cargo would take them for members of this workspace.
printf '\n[workspace]\n' >>"$sys/Cargo.toml"
printf '\n[workspace]\n' >>"$api/Cargo.toml"
"$cargo" check --offline --quiet --manifest-path "$api/Cargo.toml" --target-dir ../published \
    --config "patch.crates-io.peerdma-verbs-sys.path='$PWD/$sys'"
