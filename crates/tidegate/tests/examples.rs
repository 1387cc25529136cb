//! The examples do what they say.

#[path = "../examples/breaker.rs"]
mod breaker;
#[path = "../examples/priority_classes.rs"]
mod priority_classes;
#[path = "../examples/semaphore.rs"]
mod semaphore;
#[path = "../examples/valve.rs"]
mod valve;

#[test]
fn the_example_of_the_semaphore_runs() {
    semaphore::main().expect("it ends well");
}

#[test]
fn the_example_of_priority_classes_runs() {
    priority_classes::main().expect("it ends well");
}

#[test]
fn the_example_of_the_valve_runs() {
    valve::main().expect("it ends well");
}

#[test]
fn the_example_of_the_breaker_runs() {
    breaker::main().expect("it ends well");
}
