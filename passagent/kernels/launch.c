// From Python's arguments to cuLaunchKernel, or to a C++ kernel, with nothing in between. Built and
// loaded by launch.py.
#include "host.h"

enum { MOST = 64, WORDS = 512, RANK = 15 };
enum target { POINTER, I8, I16, I32, I64, U8, U16, U32, U64, F32, F64, BOOLEAN };
enum kind { TENSOR = 1u << 28, INT = 2u << 28, FLOAT = 3u << 28, BOOL = 4u << 28, NONE = 5u << 28 };
enum { ALIGNED = 1, STRIDED = 1 << 26 };

union value { int64_t i; uint64_t u; double d; float f; };

// What a loaded kernel is given for a parameter: argument `source` of the call, an output, or a constant.
struct parameter {
  union value constant;
  int32_t source;  // -1: the constant, which is as its type already; -2 - k: output k
  int32_t target;
};

// A loaded kernel, how it is launched, and the arguments that it is for. On the CPU `function` is called itself.
struct variant {
  struct variant* next;
  void* function;
  uint32_t sizes[SIZES];
  int32_t device_type, device;
  uint32_t count;
  struct parameter* parameters;
  uint32_t outputs;
  PyObject* (*made_of)[3];  // size, stride and dtype of each output
  uint32_t words;
  uint64_t key[];
};

// In which order the dimensions of an argument are to lie in memory, outermost first; rank 0: as they are counted.
struct order { int8_t rank, dims[RANK]; };

struct launch {
  PyObject* other;  // called with arguments that no variant takes: adds one (True), or answers the call itself
  PyMethodDef method;  // its name is the kernel's
  int cpu;      // kernels are functions in the host's memory
  int planned;  // keys tell shapes, alignments and numbers apart, not only types and devices
  struct variant* variants;
  struct order orders[MOST];  // of the arguments
};

// The arguments of a call: their values, and all that tells variants apart.
struct reading {
  uint32_t words;
  int32_t device_type, device;
  union value values[MOST];
  uint64_t key[WORDS];
};

static const char capsule[] = "passagent.launch";

// Whether a tensor does not fill its memory in that order.
static int is_strided(const struct tensor* t, const struct order* order) {
  int64_t stride = 1;
  for (int32_t k = t->ndim - 1; k >= 0; --k) {
    int32_t i = order->rank == t->ndim ? order->dims[k] : k;
    if (t->shape[i] == 0) return 0;
    if (t->shape[i] != 1 && t->strides != NULL && t->strides[i] != stride) stride = 0;
    if (stride == 0) return 1;
    stride *= t->shape[i];
  }
  return 0;
}

static int read_tensor(PyObject* object, int planned, const struct order* order, struct reading* r,
                       union value* value) {
  struct tensor t;
  if (host.torch->tensor_of(object, &t) != 0) { PyErr_Clear(); return 0; }
  value->u = (uint64_t)t.data + t.byte_offset;
  r->device_type = t.device.type;
  r->device = t.device.id;
  uint64_t key = TENSOR | (uint32_t)(t.device.id & 0x3f) << 20 | (uint32_t)(t.device.type & 15) << 16 |
                 (uint32_t)t.dtype.bits << 8 | (uint32_t)(t.dtype.code & 0x7f) << 1;
  if (planned) {
    if (r->words + (uint32_t)t.ndim + 1 >= WORDS) return 0;
    key |= (uint64_t)t.ndim << 32;
    if ((value->u & 15) == 0) key |= ALIGNED;
    if (is_strided(&t, order)) key |= STRIDED;
    r->key[r->words++] = key;
    for (int32_t i = 0; i < t.ndim; ++i) r->key[r->words++] = (uint64_t)t.shape[i];
  } else {
    r->key[r->words++] = key;
  }
  return 1;
}

static int read_argument(PyObject* object, int planned, const struct order* order, struct reading* r,
                         union value* value) {
  void* type = object->type;
  if (type == host.tensor_type) return read_tensor(object, planned, order, r, value);
  if (r->words + 2 >= WORDS) return 0;
  int overflow = 0;
  uint32_t kind;
  if (type == (void*)PyLong_Type) {
    kind = INT;
    value->i = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow) return 0;
  } else if (type == (void*)PyFloat_Type) {
    kind = FLOAT;
    value->d = PyFloat_AsDouble(object);
  } else if (object == (PyObject*)_Py_TrueStruct || object == (PyObject*)_Py_FalseStruct) {
    kind = BOOL;
    value->i = object == (PyObject*)_Py_TrueStruct;
  } else if (object == (PyObject*)_Py_NoneStruct) {
    kind = NONE;
    value->u = 0;
  } else {
    return PyType_IsSubtype(type, host.tensor_type) ? read_tensor(object, planned, order, r, value) : 0;
  }
  r->key[r->words++] = kind;
  if (planned) r->key[r->words++] = value->u;
  return 1;
}

// 1 if a variant could take the arguments.
static int read_arguments(const struct launch* l, PyObject* const* args, intptr_t count, struct reading* r) {
  r->words = 0;
  r->device_type = 0;
  if (count > MOST) return 0;
  for (intptr_t i = 0; i < count; ++i) {
    if (!read_argument(args[i], l->planned, &l->orders[i], r, &r->values[i])) return 0;
  }
  return 1;
}

// The value as its parameter declares it; 0 if it does not fit.
static int convert(int is_float, int32_t target, union value* value) {
  switch (target) {
    case I8: return value->i == (int8_t)value->i;
    case I16: return value->i == (int16_t)value->i;
    case I32: return value->i == (int32_t)value->i;
    case U8: return value->i == (uint8_t)value->i;
    case U16: return value->i == (uint16_t)value->i;
    case U32: return value->i == (uint32_t)value->i;
    case U64: return value->i >= 0;
    case BOOLEAN: value->i = value->i != 0; return 1;
    case F64: if (!is_float) value->d = (double)value->i; return 1;
    case F32: {
      float number = is_float ? (float)value->d : (float)value->i;
      value->u = 0;
      value->f = number;
      return 1;
    }
    default: return 1;
  }
}

// The variant for these arguments, or NULL; it moves to the front, for it will come again.
static struct variant* find(struct launch* l, const struct reading* r) {
  struct variant *v = l->variants, *before = NULL;
  while (v != NULL && (v->words != r->words || memcmp(v->key, r->key, r->words * sizeof *r->key) != 0)) {
    before = v;
    v = v->next;
  }
  if (v != NULL && before != NULL) {
    before->next = v->next;
    v->next = l->variants;
    l->variants = v;
  }
  return v;
}

// Hand the parameters to the kernel or to cuLaunchKernel; 0 with an error set if that fails.
static int launch(const struct launch* l, const struct variant* v, void** parameters) {
  void* stream = NULL;
  if (!l->cpu && host.torch->stream_of(v->device_type, v->device, &stream) != 0) return 0;
  return submit(l->method.name, l->cpu, v->function, v->sizes, stream, parameters);
}

static PyObject* result_of(PyObject** outputs, uint32_t count) {
  if (count == 1) return outputs[0];
  if (count == 0) {
    Py_IncRef((PyObject*)_Py_NoneStruct);
    return (PyObject*)_Py_NoneStruct;
  }
  PyObject* result = PyTuple_New(count);
  for (uint32_t i = 0; i < count; ++i) PyTuple_SetItem(result, i, outputs[i]);
  return result;
}

// Launch a variant. Returns the outputs, or NULL: with an error set, or with `fits` 0 for a number that does not.
static PyObject* run(const struct launch* l, const struct variant* v, PyObject* const* args, const struct reading* r,
                     int* fits) {
  union value values[MOST];
  void* parameters[MOST];
  PyObject* outputs[MOST];
  uint32_t made = 0;
  for (uint32_t i = 0; i < v->count; ++i) {
    const struct parameter* p = &v->parameters[i];
    parameters[i] = &values[i];
    if (p->source >= 0) {
      values[i] = r->values[p->source];
      *fits = convert(args[p->source]->type == (void*)PyFloat_Type, p->target, &values[i]);
      if (!*fits) return NULL;
    } else if (p->source == -1) {
      values[i] = p->constant;
    }
  }
  uint64_t starts[MOST];
  int right = 1;
  for (; right && made < v->outputs; made += (uint32_t)right) {
    struct tensor t;
    outputs[made] = PyObject_Vectorcall(host.empty[!l->cpu], v->made_of[made], 3, NULL);
    right = outputs[made] != NULL && host.torch->tensor_of(outputs[made], &t) == 0;
    if (right) starts[made] = (uint64_t)t.data + t.byte_offset;
    else if (outputs[made] != NULL) Py_DecRef(outputs[made]);
  }
  for (uint32_t i = 0; right && i < v->count; ++i) {
    if (v->parameters[i].source < -1) values[i].u = starts[-2 - v->parameters[i].source];
  }
  if (right && launch(l, v, parameters)) return result_of(outputs, made);
  while (made > 0) Py_DecRef(outputs[--made]);
  return NULL;
}

static PyObject* call(PyObject* self, PyObject* const* args, intptr_t count, PyObject* names) {
  struct launch* l = PyCapsule_GetPointer(self, capsule);
  if (l == NULL) return NULL;
  struct reading reading;
  int known = names == NULL && read_arguments(l, args, count, &reading);
  for (int tries = 0; tries < 2; ++tries) {
    int fits = 1;
    struct variant* v = known ? find(l, &reading) : NULL;
    PyObject* result = v == NULL ? NULL : run(l, v, args, &reading, &fits);
    if (v != NULL && fits) return result;
    if (tries == 1) break;
    PyObject* answer = PyObject_Vectorcall(l->other, args, (size_t)count, names);
    if (answer != (PyObject*)_Py_TrueStruct) return answer;
    Py_DecRef(answer);
  }
  return PyErr_Format(PyExc_RuntimeError, "%s: no kernel was made for these arguments", l->method.name);
}

static void forget(PyObject* self) {
  struct launch* l = PyCapsule_GetPointer(self, capsule);
  for (struct variant *v = l->variants, *next; v != NULL; v = next) {
    next = v->next;
    for (uint32_t i = 0; i < 3 * v->outputs; ++i) Py_DecRef(v->made_of[0][i]);
    free(v->made_of);
    free(v->parameters);
    free(v);
  }
  Py_DecRef(l->other);
  free((void*)l->method.name);
  free(l);
}

// What follows is called by launch.py through ctypes.

// A capsule of a launch that has no variants yet; `count` orders, of its first arguments.
PyObject* launch_new(const char* name, PyObject* other, int cpu, int planned, const struct order* orders,
                     uint32_t count) {
  struct launch* l = calloc(1, sizeof *l);
  l->other = other;
  l->method.name = strdup(name);
  l->method.function = (void*)call;
  l->method.flags = METH_FASTCALL | METH_KEYWORDS;
  l->method.doc = "Launch the kernel on torch's current stream; see passagent.kernels.";
  l->cpu = cpu;
  l->planned = planned;
  memcpy(l->orders, orders, count * sizeof *orders);
  Py_IncRef(other);
  return PyCapsule_New(l, capsule, forget);
}

PyObject* launch_function_of(PyObject* self) {
  struct launch* l = PyCapsule_GetPointer(self, capsule);
  return PyCFunction_NewEx(&l->method, self, NULL);
}

// From now on arguments such as these launch `function`; 0 if no kernel takes them.
// `made_of`: size, stride and dtype of each output.
int launch_add(PyObject* self, PyObject* const* args, intptr_t arguments, void* function, const uint32_t* sizes,
               const struct parameter* parameters, uint32_t count, PyObject* const* made_of, uint32_t outputs) {
  struct launch* l = PyCapsule_GetPointer(self, capsule);
  struct reading r;
  if (count > MOST || outputs > MOST || !read_arguments(l, args, arguments, &r)) return 0;
  struct variant* v = calloc(1, sizeof *v + r.words * sizeof *r.key);
  v->function = function;
  memcpy(v->sizes, sizes, sizeof v->sizes);
  v->device_type = r.device_type;
  v->device = r.device;
  v->count = count;
  v->parameters = calloc(count + 1, sizeof *parameters);
  memcpy(v->parameters, parameters, count * sizeof *parameters);
  v->outputs = outputs;
  v->made_of = calloc(outputs + 1, sizeof *v->made_of);
  for (uint32_t i = 0; i < 3 * outputs; ++i) {
    v->made_of[0][i] = made_of[i];
    Py_IncRef(made_of[i]);
  }
  v->words = r.words;
  memcpy(v->key, r.key, r.words * sizeof *r.key);
  v->next = l->variants;
  l->variants = v;
  return 1;
}
