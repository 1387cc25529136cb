//! tidegate-testkit
