"""The real worker with one thing broken in the trainer; the run's seed says which."""

import sys
import threading
import time

import numpy as np

from runners import worker

ACTOR_RAISES, ACTOR_HANGS, LEARNER_NAN = 11, 12, 13
STEPS_BEFORE = 40


def break_one_thing(seed: int) -> None:
    from cleanba import envs, training

    step, rates, calls = envs.Envs.step, training.learning_rate, []

    def broken(self, actions):
        calls.append(1)
        if len(calls) > STEPS_BEFORE and threading.current_thread().name == "actor-0":
            if seed == ACTOR_HANGS:
                time.sleep(3600)
            raise OSError("the emulator is gone")
        return step(self, actions)

    if seed == LEARNER_NAN:
        training.learning_rate = lambda config, update: np.nan if update == 2 else rates(config, update)
    else:
        envs.Envs.step = broken


def train(spec, recorder):
    break_one_thing(spec.seed)
    return trains(spec, recorder)


trains, worker.train = worker.train, train

if __name__ == "__main__":
    code = worker.main()
    sys.stdout.flush()
    sys.stderr.flush()
    worker.os._exit(code)
