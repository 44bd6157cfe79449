//! A model GPU.
