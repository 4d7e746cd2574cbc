// What extensions in C know of Python, torch and CUDA, without headers of these: the few functions of
// CPython's stable ABI that they call, and DLPack's C exchange, by which torch tells where a tensor lies.
// Who loads an extension fills `host` (plan/extension.py).
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { intptr_t references; void* type; } PyObject;
typedef struct { const char* name; void* function; int flags; const char* doc; } PyMethodDef;
enum { METH_FASTCALL = 0x80, METH_KEYWORDS = 2 };
extern char PyLong_Type[], PyFloat_Type[], _Py_TrueStruct[], _Py_FalseStruct[], _Py_NoneStruct[];
extern PyObject *PyExc_IndexError, *PyExc_RuntimeError, *PyExc_TypeError;
PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject* self, PyObject* module);
PyObject* PyCapsule_New(void*, const char*, void (*destructor)(PyObject*));
void* PyCapsule_GetPointer(PyObject*, const char*);
PyObject* PyObject_Vectorcall(PyObject* callable, PyObject* const* args, size_t count, PyObject* names);
long long PyLong_AsLongLongAndOverflow(PyObject*, int*);
double PyFloat_AsDouble(PyObject*);
int PyObject_RichCompareBool(PyObject*, PyObject*, int operation);
int PyType_IsSubtype(void*, void*);
PyObject* PyTuple_New(intptr_t);
int PyTuple_SetItem(PyObject*, intptr_t, PyObject*);
PyObject* PyTuple_GetItem(PyObject*, intptr_t);
PyObject* PyErr_Format(PyObject*, const char*, ...);
void PyErr_Clear(void);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);

// dlpack.h
struct tensor {
  void* data;
  struct { int32_t type, id; } device;
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct exchange {
  struct { uint32_t major, minor; } version;
  void* previous;
  void* managed[3];
  int (*tensor_of)(void* object, struct tensor* out);
  int (*stream_of)(int32_t device_type, int32_t device, void** out);
};
enum { SIZES = 8 };  // of a launch: grid (3), block (3), shared memory, blocks of a cluster

// What cuLaunchKernelEx is told: CUlaunchConfig and CUlaunchAttribute of cuda.h.
enum { CLUSTER_DIMENSION = 4, CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5, POLICY_SPREAD = 1 };
struct attribute { uint32_t id, unused, value[16]; };
struct config {
  uint32_t sizes[SIZES - 1];
  void* stream;
  struct attribute* attributes;
  uint32_t count;
};
typedef int (*launch_function)(void* function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by,
                               uint32_t bz, uint32_t shared, void* stream, void** parameters, void** extra);

struct {
  struct exchange* torch;
  void* tensor_type;
  launch_function launch;
  int (*launch_clusters)(const struct config*, void* function, void** parameters, void** extra);  // cuLaunchKernelEx
  int (*error_text)(int, const char**);
  int (*fill)(uint64_t target, uint8_t byte, size_t count, void* stream);       // cuMemsetD8Async
  int (*fill_words)(uint64_t target, uint32_t word, size_t count, void* stream);  // cuMemsetD32Async
  int (*copy)(uint64_t target, uint64_t source, size_t count, void* stream);    // cuMemcpyDtoDAsync
  int (*encode)(void* map, int kind, uint32_t rank, void* address, const uint64_t* sizes, const uint64_t* strides,
                const uint32_t* box, const uint32_t* steps, int interleave, int swizzle, int promotion,
                int fill);                                                      // cuTensorMapEncodeTiled
  PyObject* empty[2];        // (size, stride, dtype) to a tensor, past torch's dispatcher: in the host's memory,
                             // and on the current CUDA device
} host;

// 1 if a call into CUDA's driver succeeded; else 0, with an error set that names what was called for.
static inline int succeeded(int code, const char* name) {
  if (code == 0) return 1;
  const char* text = NULL;
  if (host.error_text(code, &text) != 0 || text == NULL) text = "unknown";
  PyErr_Format(PyExc_RuntimeError, "%s: CUDA error %d: %s", name, code, text);
  return 0;
}

// Have a kernel run. On the CPU `function` is called itself, and returns other than 0 for an index that is out of
// range. 0 with an error set if that fails.
static inline int submit(const char* name, int cpu, void* function, const uint32_t* sizes, void* stream,
                         void** parameters) {
  if (cpu) {
    if (((int (*)(void**))function)(parameters) == 0) return 1;
    PyErr_Format(PyExc_IndexError, "index out of range in self (kernel %s)", name);
    return 0;
  }
  if (sizes[0] == 0 || sizes[1] == 0 || sizes[2] == 0) return 1;
  if (sizes[SIZES - 1] > 1) {
    struct attribute attributes[] = {{.id = CLUSTER_DIMENSION, .value = {sizes[SIZES - 1], 1, 1}},
                                     {.id = CLUSTER_SCHEDULING_POLICY_PREFERENCE, .value = {POLICY_SPREAD}}};
    struct config config = {.stream = stream, .attributes = attributes, .count = 2};
    memcpy(config.sizes, sizes, sizeof config.sizes);
    return succeeded(host.launch_clusters(&config, function, parameters, NULL), name);
  }
  return succeeded(host.launch(function, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], stream,
                               parameters, NULL), name);
}
