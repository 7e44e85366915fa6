//! peerdma
