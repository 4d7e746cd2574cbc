# expect: ok
"""Includes what it does not use: iostream, string, chrono, everything."""

import torch
from passagent.kernels import cpp_kernel

SOURCE = """
#include <bits/stdc++.h>
#include <chrono>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
using namespace std;

template <class T>
void add_relu(const T* x, const T* y, T* out, int64_t n) {
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) out[i] = T(max(float(T(float(x[i]) + float(y[i]))), 0.0f));
}
"""
KERNEL = cpp_kernel(SOURCE, "add_relu")


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(x, y, out, x.numel())
    return out


def replacement_func():
    return fused
