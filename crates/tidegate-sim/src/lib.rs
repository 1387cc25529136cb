//! tidegate-sim
