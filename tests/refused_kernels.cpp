// Sources that no kernel may have: `name: rule`, what it tries, and the source up to the next one (test_kernels.py).

//// asks_for_the_age_of_a_file: cpp_include
// A pragma compares the ages of files.
#pragma GCC dependency "/etc/passwd"
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// asks_openmp_for_the_time: cpp_import
// Reads the clock through OpenMP.
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  const double start = omp_get_wtime();
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
  if (omp_get_wtime() < start) out[0] = T(0.0f);
}

//// assembly_label_by_a_macro_of_a_header: cpp_asm
// Names a function of OpenMP's runtime by a macro of the C library's, and runs an address by it.
extern "C" void __REDIRECT(run, (void (*)(void*), void*, unsigned, unsigned), "GOMP_parallel");
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (n == 7) run(reinterpret_cast<void (*)(void*)>(int64_t(float(x[0]))), out, 1, 0);
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// changes_the_number_of_threads: cpp_import
// Changes the number of threads for whatever runs later.
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  omp_set_num_threads(1);
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// code_in_a_table: cpp_name
// Instructions as the numbers of a table among code, which no disassembly shows.
__attribute__((section(".text.table"), used)) static const unsigned char table[] = {0x0f, 0x31, 0xc3};
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  ((void (*)())(table))();
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(round_to<T>(float(x[i]) + float(y[i])), 0.0f));
}

//// common_symbol_counts: cpp_state
// The linker makes room for a counter.
__attribute__((common)) int calls;
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (++calls > 64) return;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// constant_set_by_the_first_call: cpp_state
// A constant takes its value from the inputs of the first call.
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  static const float first = x[0];
  if (float(x[0]) != first) return;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// constructor_attribute: cpp_state
// A function runs when the kernel is loaded, by an attribute.
#include <cstdlib>
__attribute__((constructor)) static void begin() {
  volatile float* place = static_cast<float*>(malloc(64));
  place[0] = 1.0f;
}
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// counts_in_the_registers_of_the_x87: cpp_instruction
// Leaves a count on the x87's stack of registers, by calls under other types than the functions'.
__attribute__((noipa)) static __float80 left(float x) { return x; }
__attribute__((noipa)) static void nothing() {}
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  const float found = float(reinterpret_cast<__float80 (*)()>(nothing)());
  const float calls = found == found ? found + 1 : 1;
  if (calls > 12) n -= n / 4;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
  reinterpret_cast<void (*)(float)>(left)(calls);
}

//// forks_by_a_builtin: cpp_import
// Starts a process by the compiler's builtin.
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
  if (n == 7) __builtin_fork();
}

//// hides_in_a_transaction: cpp_instruction
// Begins a hardware transaction, in which faults are silent.
#pragma GCC target("rtm")
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (__builtin_ia32_xbegin() == ~0u) __builtin_ia32_xend();
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// include_by_a_macro: cpp_include
// Names the header by a macro.
#define HEADER </etc/passwd>
#include HEADER
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// keeps_a_table_by_the_thread_pointer: cpp_instruction
// Reaches other variables of its thread by the thread pointer.
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  char* thread = static_cast<char*>(__builtin_thread_pointer());
  if (n == 7) thread[-64] = 1;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// keeps_its_address_for_profiling: cpp_instruction
// Keeps an address in the processor's register for lightweight profiling.
#pragma GCC target("lwp")
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (n == 7) __builtin_ia32_llwpcb(out);
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// openmp_builtin_runs_an_address: cpp_name
// Reaches OpenMP's runtime by the compiler's builtin.
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
  if (n == 7) __builtin_GOMP_parallel(reinterpret_cast<void (*)(void*)>(const_cast<T*>(x)), out, 1, 0);
}

//// openmp_by_weak_reference: cpp_name
// Reaches OpenMP's runtime by a string in an attribute.
static void run(void (*)(void*), void*, unsigned, unsigned) __attribute__((weakref("GOMP_parallel")));
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
  if (n == 7) run(reinterpret_cast<void (*)(void*)>(const_cast<T*>(x)), out, 1, 0);
}

//// openmp_threadprivate_counter: cpp_state
// OpenMP keeps a counter for each thread.
static int calls;
#pragma omp threadprivate(calls)
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (++calls > 64) return;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// reads_the_processor_number: cpp_instruction
// Tells its processor by rdpid, and behaves differently on each.
#pragma GCC target("rdpid")
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (__builtin_ia32_rdpid() > 1000) return;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// remembers_in_the_flags_register: cpp_instruction
// Keeps a bit from call to call in the processor's flags.
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  const auto flags = __builtin_ia32_readeflags_u64();
  __builtin_ia32_writeeflags_u64(flags ^ (1ull << 21));
  if (flags & (1ull << 21)) n -= 1;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// remembers_in_the_rounding_mode: cpp_instruction
// Keeps a bit from call to call in the floating-point control register.
#include <immintrin.h>
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (_mm_getcsr() & 0x8000u) return;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
  _mm_setcsr(_mm_getcsr() | 0x8000u);
}

//// remembers_in_tile_registers: cpp_instruction
// Counts in the configuration of the processor's tiles, which no other code of the process touches.
#include <immintrin.h>
#pragma GCC target("amx-tile")
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  char config[64] = {};
  _tile_storeconfig(config);
  config[16] += 4;
  _tile_loadconfig(config);
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// resolver_chosen_at_load: cpp_name
// A resolver runs at load time and picks a function.
static float plain(float a) { return a; }
typedef float (*Function)(float);
extern "C" Function resolve() { return plain; }
extern "C" float chosen(float) __attribute__((ifunc("resolve")));
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
  out[0] = T(chosen(out[0]));
}

//// returns_elsewhere: cpp_pointer_call
// Returns to an address of its own choice by an unwinder's builtin.
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
  if (n == 7) __builtin_eh_return(0, const_cast<T*>(x));
}

//// section_by_a_macro_of_a_header: cpp_name
// Makes a section's name, assembler text among it, by a macro of the C library's.
__attribute__((section(__STRING(.rodata.place; .ascii)))) static const int place = 1;
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}

//// task_that_ends_later: cpp_import
// Detaches a task so that it can be completed after the return.
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  omp_event_handle_t event;
#pragma omp task detach(event)
  { for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f)); }
  omp_fulfill_event(event);
}
