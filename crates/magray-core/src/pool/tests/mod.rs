//! Tests of the pool over simulated memory that checks every call.
mod smoke;
