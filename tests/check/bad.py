"""Code that misbehaves when it is called or made."""

import contextlib
import ctypes
import os
import sys
import time

import torch
from torch import nn


def loops(q, k, v):
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


def exits(q, k, v):
    sys.exit(3)


def ends_the_process(q, k, v):
    os._exit(7)


def crashes(q, k, v):
    ctypes.string_at(0)


def hungry(q, k, v):
    return torch.zeros(1 << 40) + q


def returns_nothing(q, k, v):
    torch.softmax(q @ k.mT, dim=-1) @ v


def wrong_shape(q, k, v):
    return (torch.softmax(q @ k.mT, dim=-1) @ v)[..., :1, :1]


def integers(q, k, v):
    return (torch.softmax(q @ k.mT, dim=-1) @ v).long()


def not_a_number(q, k, v):
    return q * float("nan")


def wants_a_gpu(q, k, v):
    raise RuntimeError("Found no NVIDIA driver on your system: this kernel needs CUDA")


def wants_more(q, k, v, banana):
    return q


def no_arguments():
    return 1


class Needs(nn.Module):
    def __init__(self, banana):
        super().__init__()


class Breaks(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        raise KeyError("block_size")


class Empty(nn.Module):
    def forward(self, x):
        return x


NUMBER = 3


def rude(q, k, v):
    print("hello from inside")
    torch.manual_seed(1337)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)
