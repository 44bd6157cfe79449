//! libvramalloc.so: see the design.
