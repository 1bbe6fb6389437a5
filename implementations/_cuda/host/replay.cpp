// Replays of planned calls: what recorder.py saw a call do, done again without Python, and its backward pass as a node of autograd.
// Needs torch's headers alone. CUDA's driver is called by the addresses of its functions.
#include <Python.h>

#include <ATen/Context.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided_ops.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <thread>

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Ints = std::vector<int64_t>;
using NodePtr = decltype(torch::autograd::Edge::function);

constexpr size_t MAX_TAPES = 32, MAX_PARAMS = 4096, ALIGNMENT = 16;
constexpr int INVALID_CONTEXT = 201;

// The driver's functions, as cuda.h declares them.
using LaunchKernel = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
using LaunchCooperative = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**);
using MemsetBytes = int (*)(uintptr_t, unsigned char, size_t, void*);
using IsCapturing = int (*)(void*, int*);
using SetContext = int (*)(void*);

// Errors of Python as C++ exceptions.
[[noreturn]] void raise_python() {
    python_error error;
    error.persist();
    throw error;
}

PyObject* checked(PyObject* object) {
    if (!object) raise_python();
    return object;
}

struct Owned {  // a reference of this process to a Python object, which is released whatever thread ends it
    PyObject* object;
    explicit Owned(PyObject* object) : object(object) {}
    Owned(const Owned&) = delete;
    Owned(Owned&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
    ~Owned() {
        if (!object || !Py_IsInitialized()) return;
        auto state = PyGILState_Ensure();
        Py_DECREF(object);
        PyGILState_Release(state);
    }
};

struct WithGil {
    PyGILState_STATE state = PyGILState_Ensure();
    ~WithGil() { PyGILState_Release(state); }
};

struct WithoutGil {
    PyThreadState* state = PyEval_SaveThread();
    ~WithoutGil() { PyEval_RestoreThread(state); }
};

// Reading what Python passes.
PyObject* item(PyObject* sequence, Py_ssize_t at) {  // borrowed
    return checked(PyTuple_Check(sequence) ? PyTuple_GetItem(sequence, at) : PyList_GetItem(sequence, at));
}
Py_ssize_t length(PyObject* sequence) { return PyTuple_Check(sequence) ? PyTuple_GET_SIZE(sequence) : PyList_Size(sequence); }
int64_t to_int(PyObject* object) {
    auto value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) raise_python();
    return value;
}
void* to_pointer(PyObject* object) { return reinterpret_cast<void*>(static_cast<uintptr_t>(to_int(object))); }
int64_t int_at(PyObject* sequence, Py_ssize_t at) { return to_int(item(sequence, at)); }
Ints ints(PyObject* sequence) {
    Ints values;
    for (Py_ssize_t i = 0; i < length(sequence); i++) values.push_back(int_at(sequence, i));
    return values;
}
std::string text(PyObject* object) { return checked(object), PyUnicode_AsUTF8(object); }
Tensor to_tensor(PyObject* object) { return object == Py_None ? Tensor() : THPVariable_Unpack(object); }
PyObject* wrap(const Tensor& tensor) {
    return tensor.defined() ? checked(THPVariable_Wrap(tensor)) : Py_NewRef(Py_None);
}

// An argument of an operator. Tensors are given as (number of a value,), and filled in by each replay.
struct Argument {
    c10::IValue constant;
    Ints values;  // one for a tensor, any number for a list of them; -1 for none
    enum { CONSTANT, TENSOR, TENSORS, OPTIONAL_TENSORS } kind = CONSTANT;
};

c10::IValue scalar(PyObject* object, c10::TypeKind kind) {
    if (object == Py_None) return {};
    if (PyBool_Check(object)) return object == Py_True;
    if (PyFloat_Check(object)) return PyFloat_AS_DOUBLE(object);
    if (PyUnicode_Check(object)) {
        if (kind == c10::TypeKind::DeviceObjType) return c10::Device(text(object));
        return text(object);
    }
    if (Py_TYPE(object) == &THPDtypeType) return static_cast<int64_t>(reinterpret_cast<THPDtype*>(object)->scalar_type);
    if (kind == c10::TypeKind::FloatType) return static_cast<double>(to_int(object));
    return to_int(object);
}

Argument argument(PyObject* object, const c10::Argument& schema) {
    if (object == Py_Ellipsis) return {schema.default_value().value_or(c10::IValue())};
    auto type = schema.type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (PyTuple_Check(object)) return {{}, {int_at(object, 0)}, Argument::TENSOR};
    if (type->kind() == c10::TypeKind::TensorType && object != Py_None) {  // a number, as of 2 * x
        auto number = c10::scalar_to_tensor(scalar(object, c10::TypeKind::NumberType).toScalar());
        number.unsafeGetTensorImpl()->set_wrapped_number(true);
        return {number};
    }
    if (!PyList_Check(object)) return {scalar(object, type->kind())};
    auto element = type->expectRef<c10::ListType>().getElementType();
    auto is_optional = element->kind() == c10::TypeKind::OptionalType;
    if (is_optional || element->kind() == c10::TypeKind::TensorType) {
        Argument result{{}, {}, is_optional ? Argument::OPTIONAL_TENSORS : Argument::TENSORS};
        for (Py_ssize_t i = 0; i < length(object); i++) {
            auto one = item(object, i);
            result.values.push_back(one == Py_None ? -1 : int_at(one, 0));
        }
        return result;
    }
    if (element->kind() == c10::TypeKind::FloatType || element->kind() == c10::TypeKind::BoolType) {
        c10::impl::GenericList list(element);
        for (Py_ssize_t i = 0; i < length(object); i++) list.push_back(scalar(item(object, i), element->kind()));
        return {list};
    }
    return {c10::IValue(ints(object))};
}

// Instructions, by their numbers in recorder.py.
enum class Kind { EMPTY, VIEW, OPERATOR, LAUNCH, MEMSET, FORK, BACK, JOIN, FREE };

struct Pointer {
    int64_t at, value, offset;  // of Params in bytes; a value; in bytes from its first element
};

struct Instruction {
    Kind kind;
    Ints outputs;  // values that are made; of FREE those that are dropped
    int64_t base = 0, offset = 0;  // of VIEW, MEMSET: a value; in elements, or a number of bytes
    Ints sizes, strides;
    at::ScalarType dtype = at::kFloat;
    std::optional<c10::OperatorHandle> op;
    std::vector<Argument> arguments;
    void *launch = nullptr, *function = nullptr;
    bool is_cooperative = false;
    unsigned grid = 0, block = 0, shared_bytes = 0;
    std::string params;
    std::vector<Pointer> pointers;
};

Instruction instruction(PyObject* given) {
    Instruction result{static_cast<Kind>(int_at(given, 0))};
    auto part = [&](Py_ssize_t at) { return item(given, at); };
    switch (result.kind) {
        case Kind::EMPTY:
            result.outputs = {int_at(given, 1)}, result.sizes = ints(part(2)), result.strides = ints(part(3));
            result.dtype = reinterpret_cast<THPDtype*>(part(4))->scalar_type;
            break;
        case Kind::VIEW:
            result.outputs = {int_at(given, 1)}, result.base = int_at(given, 2), result.sizes = ints(part(3));
            result.strides = ints(part(4)), result.offset = int_at(given, 5);
            break;
        case Kind::OPERATOR: {
            result.op = c10::Dispatcher::singleton().findSchemaOrThrow(text(part(1)).c_str(), text(part(2)).c_str());
            auto& schema = result.op->schema().arguments();
            for (size_t i = 0; i < schema.size(); i++) result.arguments.push_back(argument(item(part(3), i), schema[i]));
            result.outputs = ints(part(4));
            break;
        }
        case Kind::LAUNCH:
            result.launch = to_pointer(part(1)), result.is_cooperative = part(2) == Py_True;
            result.function = to_pointer(part(3)), result.grid = int_at(given, 4), result.block = int_at(given, 5);
            result.shared_bytes = int_at(given, 6);
            result.params.assign(PyBytes_AsString(part(7)), PyBytes_Size(part(7)));
            TORCH_CHECK(result.params.size() <= MAX_PARAMS, "expected at most ", MAX_PARAMS, " bytes of parameters");
            for (Py_ssize_t i = 0; i < length(part(8)); i++) {
                auto one = item(part(8), i);
                result.pointers.push_back({int_at(one, 0), int_at(one, 1), int_at(one, 2)});
            }
            break;
        case Kind::MEMSET:
            result.launch = to_pointer(part(1)), result.base = int_at(given, 2), result.offset = int_at(given, 3);
            break;
        case Kind::FREE:
            result.outputs = ints(part(1));
            break;
        default:
            break;
    }
    return result;
}

// What a tensor must have in common with the one that was recorded in its place.
struct Layout {
    bool is_defined = false;
    at::ScalarType dtype = at::kFloat;
    c10::Device device = at::kCPU;
    c10::DispatchKeySet keys;
    Ints sizes, strides;
    uintptr_t misalignment = 0;

    explicit Layout(const Tensor& tensor) : is_defined(tensor.defined()) {
        if (!is_defined) return;
        dtype = tensor.scalar_type(), device = tensor.device(), keys = tensor.key_set();
        sizes = tensor.sizes().vec(), strides = tensor.strides().vec(), misalignment = misalignment_of(tensor);
    }
    static uintptr_t misalignment_of(const Tensor& tensor) {
        return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % ALIGNMENT;
    }
    bool is_of(const Tensor& tensor) const {
        if (!tensor.defined() || !is_defined) return tensor.defined() == is_defined;
        return tensor.key_set() == keys && tensor.scalar_type() == dtype && tensor.device() == device && tensor.sizes() == sizes &&
            tensor.strides() == strides && misalignment_of(tensor) == misalignment;
    }
};

// What products of a call are computed in, by its number in reference/held_products.py.
enum Products { IEEE, TF32, FLOAT16, BFLOAT16 };

// A setting of the process. Threads that need the same hold it at once, others wait for them.
class Setting {
    int (*const read)();
    void (*const write)(int);
    std::mutex mutex;
    std::condition_variable released;
    std::vector<std::pair<std::thread::id, Products>> holders;
    std::list<Products> waiting;
    int before = 0, during = 0;

    int value(Products products) const {  // of torch's enumerations
        if (products >= FLOAT16) return std::max(before, static_cast<int>(at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK));
        constexpr auto ieee = static_cast<int>(at::Float32Precision::IEEE), tf32 = static_cast<int>(at::Float32Precision::TF32);
        if (products == TF32) return tf32;
        return before == tf32 ? ieee : before;
    }
    void set(int next) {
        if (read() != next) write(next);
    }

  public:
    Setting(int (*read)(), void (*write)(int)) : read(read), write(write) {}

    // Waits for threads that hold or awaited others before; returns false where is_interrupted, asked ten times a second, says so.
    template <class IsInterrupted>
    bool hold(Products products, IsInterrupted is_interrupted) {
        auto thread = std::this_thread::get_id();
        std::unique_lock<std::mutex> lock(mutex);
        auto place = waiting.insert(waiting.end(), products);
        auto is_free = [&] {
            auto is_own = [&](auto& holder) { return holder.first == thread; };
            auto is_same = [&](auto& holder) { return is_own(holder) || holder.second == products; };
            if (std::any_of(holders.begin(), holders.end(), is_own)) return std::all_of(holders.begin(), holders.end(), is_same);
            return std::all_of(holders.begin(), holders.end(), is_same) &&
                std::all_of(waiting.begin(), place, [&](auto other) { return other == products; });
        };
        bool is_held;
        while (!(is_held = released.wait_for(lock, std::chrono::milliseconds(100), is_free))) {
            lock.unlock();
            bool stops = is_interrupted();
            lock.lock();
            if (stops) break;
        }
        waiting.erase(place);
        if (is_held) {
            if (holders.empty()) before = read();
            holders.emplace_back(thread, products);
            set(during = value(products));
        }
        released.notify_all();
        return is_held;
    }
    void release(Products products) {
        std::lock_guard<std::mutex> lock(mutex);
        auto holder = std::find(holders.begin(), holders.end(), std::make_pair(std::this_thread::get_id(), products));
        TORCH_CHECK(holder != holders.end(), "this thread holds no such precision");
        holders.erase(holder);
        if (!holders.empty())
            set(during = value(holders.back().second));
        else if (read() == during)  // else somebody has set another meanwhile
            set(before);
        released.notify_all();
    }
};

template <auto READ, auto WRITE>
Setting& sums() {  // of 16 bits
    using Option = at::CuBLASReductionOption;
    static auto& setting = *new Setting(
        [] { return static_cast<int>((at::globalContext().*READ)()); },
        [](int value) {
            auto option = static_cast<Option>(value);
            (at::globalContext().*WRITE)(
                option == Option::AllowReducedPrecisionWithSplitK, option != Option::DisallowReducedPrecisionDisallowSplitK);
        });
    return setting;
}

Setting& setting_of(Products products) {
    using at::Context;
    constexpr auto backend = at::Float32Backend::CUDA;
    constexpr auto op = at::Float32Op::MATMUL;
    static auto& float32 = *new Setting(
        [] { return static_cast<int>(at::globalContext().float32Precision(backend, op)); },
        [](int value) { at::globalContext().setFloat32Precision(backend, op, static_cast<at::Float32Precision>(value)); });
    if (products == FLOAT16) return sums<&Context::allowFP16ReductionCuBLAS, &Context::setAllowFP16ReductionCuBLAS>();
    if (products == BFLOAT16) return sums<&Context::allowBF16ReductionCuBLAS, &Context::setAllowBF16ReductionCuBLAS>();
    return float32;
}

struct HeldProducts {
    const std::optional<Products> products;
    explicit HeldProducts(std::optional<Products> products) : products(products) {
        if (products) setting_of(*products).hold(*products, [] { return false; });
    }
    ~HeldProducts() {
        if (products) setting_of(*products).release(*products);
    }
};

struct SideStream {
    c10::Stream stream;
    void *begin = nullptr, *end = nullptr;  // events, recorded anew in each use

    static std::mutex& mutex() {  // of all of them
        static std::mutex one;
        return one;
    }
};

// The stream beside another. torch's pool hands out its 32 streams in turns, to others too, so it may hand out the other itself.
SideStream& side_stream(const c10::impl::VirtualGuardImpl& device, c10::Stream current) {
    static auto& streams = *new std::map<std::pair<int, c10::StreamId>, SideStream>();  // outlives the driver
    std::lock_guard<std::mutex> lock(SideStream::mutex());
    auto key = std::make_pair(static_cast<int>(current.device_index()), current.id());
    auto place = streams.find(key);
    if (place == streams.end()) {
        auto stream = device.getStreamFromGlobalPool(current.device(), false);
        for (int i = 0; i < 32 && stream == current; i++) stream = device.getStreamFromGlobalPool(current.device(), false);
        place = streams.emplace(key, SideStream{stream}).first;
    }
    return place->second;
}

// A device, and what its driver offers. is_capturing and set_context are null on a CPU, whose only stream is 0.
struct Driver {
    c10::Device device;
    c10::impl::VirtualGuardImpl guard;
    IsCapturing is_capturing;
    SetContext set_context;
    void* context;

    void* handle(c10::Stream stream) const {
        return device.is_cpu() ? reinterpret_cast<void*>(stream.id()) : guard.getStreamNativeHandle(stream);
    }

    bool captures() const {
        int status = 0;
        if (!is_capturing) return false;
        auto stream = handle(guard.getStream(device));
        call([&] { return is_capturing(stream, &status); }, "tell whether a stream is captured");
        return status != 0;
    }
    static void check(int status, const std::string& action) {
        if (status) throw std::runtime_error("the CUDA driver could not " + action + ": error " + std::to_string(status));
    }
    // A thread that has not called CUDA's runtime has no context.
    template <class Call>
    void call(Call function, const char* action) const {
        int status = function();
        if (status == INVALID_CONTEXT && set_context && !set_context(context)) status = function();
        check(status, action);
    }
};

struct Tape {
    std::vector<Layout> inputs;
    std::string needs;  // of a backward pass, a character for each gradient; whether it may overwrite what was saved
    bool overwrites = false;
    std::string refusal;  // why it was not recorded: Python runs such calls
    std::vector<Instruction> instructions;
    size_t num_values = 0;
    Ints outputs;  // values; -1 for none
    std::optional<Products> products;  // that are held, where operators may multiply
    std::atomic<int64_t> replays{0};

    bool is_for(const Tensors& given, const std::string& wanted, bool may_overwrite) const {
        if (given.size() != inputs.size() || needs != wanted || overwrites != may_overwrite) return false;
        for (size_t i = 0; i < inputs.size(); i++)
            if (!inputs[i].is_of(given[i])) return false;
        return true;
    }

    Tensors run(const Tensors& given, const Driver& driver) const {
        Tensors values(num_values);
        std::copy(given.begin(), given.end(), values.begin());
        at::AutoDispatchBelowADInplaceOrView below_autograd;
        c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
        HeldProducts held(products);
        c10::OptionalDeviceGuard on_device;
        if (!driver.device.is_cpu()) on_device.reset_device(driver.device);
        auto current = driver.guard.getStream(driver.device);
        Streams streams{driver, current, driver.handle(current)};
        torch::jit::Stack stack;
        for (auto& one : instructions) execute(one, values, driver, streams, stack);
        Tensors results;
        for (auto number : outputs) results.push_back(number < 0 ? Tensor() : values[number]);
        return results;
    }

  private:
    struct Streams {
        const Driver& driver;
        c10::Stream current;
        void *handle, *current_handle = handle;
        SideStream* side = nullptr;  // between FORK and JOIN
        bool is_on_side = false;

        void fork() {
            side = &side_stream(driver.guard, current);
            wait_for(&side->begin, current, side->stream);
            driver.guard.exchangeStream(side->stream);
            is_on_side = true, handle = driver.handle(side->stream);
        }
        void back() {
            driver.guard.exchangeStream(current);
            is_on_side = false, handle = current_handle;
        }
        void join() {
            wait_for(&side->end, side->stream, current);
            side = nullptr;
        }
        void wait_for(void** event, c10::Stream awaited, c10::Stream waiting) {
            std::lock_guard<std::mutex> lock(SideStream::mutex());  // the event is made by its first use
            driver.guard.record(event, awaited, driver.device.index(), c10::EventFlag::PYTORCH_DEFAULT);
            driver.guard.block(*event, waiting);
        }
        ~Streams() {  // after an error too the memory that the side stream uses is not to be reused before it ends
            if (!side) return;
            try {
                if (is_on_side) back();
                join();
            } catch (...) {
            }
        }
    };

    static void execute(const Instruction& one, Tensors& values, const Driver& driver, Streams& streams, torch::jit::Stack& stack) {
        switch (one.kind) {
            case Kind::EMPTY:
                values[one.outputs[0]] = at::_ops::empty_strided::redispatch(
                    c10::DispatchKeySet(driver.device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA),
                    c10::fromIntArrayRefSlow(one.sizes), c10::fromIntArrayRefSlow(one.strides), one.dtype, std::nullopt,
                    driver.device, std::nullopt);
                break;
            case Kind::VIEW:
                values[one.outputs[0]] = view(values[one.base], one);
                break;
            case Kind::OPERATOR:
                call(one, values, stack);
                break;
            case Kind::LAUNCH:
                launch(one, values, driver, streams.handle);
                break;
            case Kind::MEMSET: {
                auto start = reinterpret_cast<uintptr_t>(values[one.base].mutable_data_ptr());
                auto memset = reinterpret_cast<MemsetBytes>(one.launch);
                driver.call([&] { return memset(start, 0, one.offset, streams.handle); }, "clear memory");
                break;
            }
            case Kind::FORK:
                streams.fork();
                break;
            case Kind::BACK:
                streams.back();
                break;
            case Kind::JOIN:
                streams.join();
                break;
            case Kind::FREE:
                for (auto number : one.outputs) values[number].reset();
        }
    }

    static Tensor view(const Tensor& base, const Instruction& one) {
        auto result = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()), base.key_set(), base.dtype());
        result.unsafeGetTensorImpl()->set_storage_offset(base.storage_offset() + one.offset);
        result.unsafeGetTensorImpl()->set_sizes_and_strides(one.sizes, one.strides);
        return result;
    }

    static void call(const Instruction& one, Tensors& values, torch::jit::Stack& stack) {
        stack.clear();
        auto value = [&](int64_t number) { return number < 0 ? std::optional<Tensor>() : values[number]; };
        for (auto& argument : one.arguments) {
            if (argument.kind == Argument::TENSOR) {
                stack.emplace_back(values[argument.values[0]]);
            } else if (argument.kind == Argument::TENSORS) {
                c10::List<Tensor> list;
                for (auto number : argument.values) list.push_back(values[number]);
                stack.emplace_back(std::move(list));
            } else if (argument.kind == Argument::OPTIONAL_TENSORS) {
                c10::List<std::optional<Tensor>> list;
                for (auto number : argument.values) list.push_back(value(number));
                stack.emplace_back(std::move(list));
            } else {
                stack.push_back(argument.constant);
            }
        }
        one.op->callBoxed(stack);
        for (size_t i = 0; i < one.outputs.size(); i++) values[one.outputs[i]] = std::move(stack[i]).toTensor();
    }

    static void launch(const Instruction& one, const Tensors& values, const Driver& driver, void* stream) {
        alignas(ALIGNMENT) char params[MAX_PARAMS];
        std::memcpy(params, one.params.data(), one.params.size());
        for (auto [at, number, offset] : one.pointers) {
            auto address = reinterpret_cast<uintptr_t>(values[number].const_data_ptr()) + offset;
            std::memcpy(params + at, &address, sizeof(address));
        }
        void* arguments[] = {params};
        driver.call(
            [&] {
                if (one.is_cooperative)
                    return reinterpret_cast<LaunchCooperative>(one.launch)(
                        one.function, one.grid, 1, 1, one.block, 1, 1, one.shared_bytes, stream, arguments);
                return reinterpret_cast<LaunchKernel>(one.launch)(
                    one.function, one.grid, 1, 1, one.block, 1, 1, one.shared_bytes, stream, arguments, nullptr);
            },
            "launch a kernel");
    }
};

// Python's executor: python(needs, overwrites, is_observed, records, tensors) -> tape, its refusal or None, and results.
enum class Run { RECORDED, PLAIN, OBSERVED };

struct PlannedCall : std::enable_shared_from_this<PlannedCall> {
    Owned python;
    Driver driver;
    std::string name;
    size_t num_results;  // of the tape's outputs, the others are saved for backward
    Ints saved;  // outputs that are saved, in this order, after the inputs
    bool saves_inputs = true;  // else each result is that of the input at its place
    const int32_t* timed_out;  // not 0 after a kernel gave up, which Python reports
    std::optional<Products> products;
    std::mutex mutex;
    std::vector<std::shared_ptr<Tape>> tapes;
    std::atomic<int64_t> python_runs{0};

    PlannedCall(PyObject* python, Driver driver) : python(Py_NewRef(python)), driver(driver) {}

    Tensors run(const Tensors& inputs, const std::string& needs, bool overwrites) {
        std::shared_ptr<Tape> tape;
        size_t known;
        {
            std::lock_guard<std::mutex> lock(mutex);
            known = tapes.size();
            for (auto& one : tapes)
                if (one->is_for(inputs, needs, overwrites)) {
                    tape = one;
                    break;
                }
        }
        auto is_stuck = timed_out && *timed_out;
        if (tape && tape->refusal.empty() && !is_stuck) {
            tape->replays++;
            return tape->run(inputs, driver);
        }
        bool is_plain = tape || is_stuck || known >= MAX_TAPES || has_one_twice(inputs);
        return by_python(inputs, needs, overwrites, is_plain ? Run::PLAIN : Run::RECORDED);
    }

    static bool has_one_twice(const Tensors& inputs) {  // which is no reason to refuse their layouts
        for (size_t i = 0; i < inputs.size(); i++)
            for (size_t j = 0; j < i; j++)
                if (inputs[i].defined() && inputs[i].is_same(inputs[j])) return true;
        return false;
    }

    Tensors by_python(const Tensors& inputs, const std::string& needs, bool overwrites, Run how) {
        WithGil with_gil;
        python_runs++;
        Owned tensors(checked(PyTuple_New(inputs.size())));
        for (size_t i = 0; i < inputs.size(); i++) PyTuple_SET_ITEM(tensors.object, i, wrap(inputs[i]));
        Owned found(checked(PyObject_CallFunction(
            python.object, "sOiO", needs.c_str(), overwrites ? Py_True : Py_False, static_cast<int>(how), tensors.object)));
        auto recorded = item(found.object, 0), outputs = item(found.object, 1);
        Tensors results;
        for (Py_ssize_t i = 0; i < length(outputs); i++) results.push_back(to_tensor(item(outputs, i)));
        if (recorded != Py_None) add_tape(recorded, inputs, needs, overwrites);
        return results;
    }

    // Python may have recorded the same on two threads at once.
    void add_tape(PyObject* recorded, const Tensors& inputs, const std::string& needs, bool overwrites) {
        auto tape = std::make_shared<Tape>();
        for (auto& one : inputs) tape->inputs.emplace_back(one);
        tape->needs = needs, tape->overwrites = overwrites;
        try {
            read(recorded, *tape);
        } catch (const std::exception& error) {
            tape->refusal = error.what();
        }
        std::lock_guard<std::mutex> lock(mutex);
        for (auto& one : tapes)
            if (one->is_for(inputs, needs, overwrites)) return;
        if (tapes.size() < MAX_TAPES) tapes.push_back(std::move(tape));
    }

    void read(PyObject* recorded, Tape& tape) const {
        if (PyUnicode_Check(recorded)) {
            tape.refusal = text(recorded);
            return;
        }
        for (Py_ssize_t i = 0; i < length(item(recorded, 0)); i++) {
            tape.instructions.push_back(instruction(item(item(recorded, 0), i)));
            if (tape.instructions.back().kind == Kind::OPERATOR) tape.products = products;
        }
        tape.num_values = int_at(recorded, 1), tape.outputs = ints(item(recorded, 2));
    }
};

bool is_plain_thread() {  // no mode, transform or tracer
    auto included = c10::impl::tls_local_dispatch_key_set().included_;
    return (included - c10::default_included_set - c10::autocast_dispatch_keyset).empty();
}

struct PlannedBackward : torch::autograd::Node {
    std::shared_ptr<PlannedCall> call;
    std::vector<torch::autograd::SavedVariable> saved;
    c10::DispatchKeySet keys;  // of all tensors of a plain call

    std::string name() const override { return call->name; }

    void release_variables() override {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto& one : saved) one.reset_data();
    }

    torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
        Tensors inputs;
        inputs.reserve(saved.size() + gradients.size());
        {
            std::lock_guard<std::mutex> lock(mutex_);
            for (auto& one : saved) inputs.push_back(one.unpack(getptr()));
        }
        bool is_observed = at::GradMode::is_enabled() || !is_plain_thread();
        for (auto& one : gradients) {
            is_observed |= torch::autograd::isFwGradDefined(one);
            inputs.push_back(std::move(one));
        }
        for (auto& one : inputs) is_observed |= one.defined() && one.key_set() != keys;
        auto needs = wanted();
        // A CUDA graph of the backward pass alone may be replayed more often than the forward pass before it.
        bool overwrites = !torch::autograd::get_current_graph_task_keep_graph() && !call->driver.captures();
        if (is_observed) return call->by_python(inputs, needs, overwrites, Run::OBSERVED);
        return call->run(inputs, needs, overwrites);
    }

    std::string wanted() const {
        std::string needs;
        for (size_t i = 0; i < num_outputs(); i++) needs += task_should_compute_output(i) ? '1' : '0';
        return needs;
    }

#if __has_include(<torch/headeronly/version.h>)  // torch 2.9
    // Compiled autograd calls the pass as one opaque function of what was saved.
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
        args.collect(call->name);
        args.collect(static_cast<int64_t>(reinterpret_cast<uintptr_t>(call.get())));
        args.collect(saved, true);
    }

    torch::autograd::variable_list apply_with_saved(
        const torch::autograd::variable_list& gradients, torch::dynamo::autograd::SwapSavedVariables& swapped) override {
        using namespace torch::dynamo::autograd;
        swapped.before(saved);
        PackedArgs packed;
        packed.pack(wanted());
        std::string defined;
        for (auto& one : saved) {
            auto tensor = one.unpack(getptr());
            defined += tensor.defined() ? '1' : '0';
            if (tensor.defined()) packed.pack(tensor);
        }
        packed.pack(defined);
        auto args = std::move(packed).vec();
        std::vector<at::TypePtr> schema;
        for (auto& one : args) schema.push_back(one.isTensor() ? at::TensorType::get() : one.type());
        auto function = [call = call](const torch::autograd::variable_list& gradients, const std::vector<c10::IValue>& args) {
            Tensors inputs;
            size_t next = 1;
            for (auto is_defined : args.back().toStringRef())
                inputs.push_back(is_defined == '1' ? args[next++].toTensor() : Tensor());
            inputs.insert(inputs.end(), gradients.begin(), gradients.end());
            at::NoGradGuard no_grad;
            return call->by_python(inputs, args[0].toStringRef(), false, Run::PLAIN);
        };
        auto metadata = IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
            get_input_metadata(next_edges()));
        auto& python = getPyCompilerInterface();
        auto name = python->bind_function(swapped.get_py_compiler(), call->name, function, schema, true, false);
        auto results = python->call_function(
            swapped.get_py_compiler(), "apply_functional", name, gradients, args, metadata);
        swapped.after(saved);
        return results;
    }
#endif
};

template <class Pointer, class T>
Pointer make_node() {  // torch holds nodes by pointers of its own from 2.13 on
    if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
        return std::shared_ptr<T>(new T(), [](auto* node) { deleteNode(node); });
    else
        return c10::make_intrusive<T>();
}

void set_backward(PlannedCall& call, const Tensors& inputs, const Tensors& outputs) {
    auto held = make_node<NodePtr, PlannedBackward>();
    auto node = static_cast<PlannedBackward*>(held.get());
    node->call = call.shared_from_this(), node->keys = outputs[0].key_set();
    torch::autograd::edge_list edges;
    for (auto& one : inputs) edges.push_back(one.defined() ? torch::autograd::impl::gradient_edge(one) : torch::autograd::Edge());
    node->set_next_edges(std::move(edges));
    for (size_t i = 0; call.saves_inputs && i < inputs.size(); i++) node->saved.emplace_back(inputs[i], false);
    for (size_t i = 0; i < call.num_results; i++) {
        if (call.saves_inputs || inputs[i].requires_grad())
            torch::autograd::set_history(outputs[i], held);
        else
            node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
    for (auto i : call.saved) node->saved.emplace_back(outputs[i], static_cast<size_t>(i) < call.num_results);
}

PlannedCall& call_of(PyObject* capsule) {
    return **static_cast<std::shared_ptr<PlannedCall>*>(PyCapsule_GetPointer(capsule, nullptr));
}

PyObject* run(PyObject* self, PyObject* const* given, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    auto& call = call_of(self);
    Tensors inputs, outputs;
    inputs.reserve(count);
    for (Py_ssize_t i = 0; i < count; i++) inputs.push_back(to_tensor(given[i]));
    {
        WithoutGil without_gil;
        outputs = is_plain_thread() ? call.run(inputs, "", false) : call.by_python(inputs, "", false, Run::PLAIN);
        if (at::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(inputs)) set_backward(call, inputs, outputs);
    }
    Owned results(checked(PyTuple_New(call.num_results)));
    for (size_t i = 0; i < call.num_results; i++) PyTuple_SET_ITEM(results.object, i, wrap(outputs[i]));
    return std::exchange(results.object, nullptr);
    END_HANDLE_TH_ERRORS
}

PyMethodDef run_method{"planned_call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run)), METH_FASTCALL, nullptr};

// make(python, name, device, num_results, saved, timed_out, products, saves_inputs, is_capturing, set_context, context): a function
// of tensors. products: their number, -1 for none.
PyObject* make(PyObject*, PyObject* given) {
    HANDLE_TH_ERRORS
    auto part = [&](Py_ssize_t at) { return item(given, at); };
    c10::Device device(text(part(2)));
    auto call = std::make_shared<PlannedCall>(
        part(0),
        Driver{
            device, c10::impl::VirtualGuardImpl(device.type()), reinterpret_cast<IsCapturing>(to_pointer(part(8))),
            reinterpret_cast<SetContext>(to_pointer(part(9))), to_pointer(part(10))});
    call->name = text(part(1)), call->num_results = int_at(given, 3), call->saved = ints(part(4));
    call->timed_out = static_cast<const int32_t*>(to_pointer(part(5)));
    if (auto products = int_at(given, 6); products >= 0) call->products = static_cast<Products>(products);
    call->saves_inputs = part(7) == Py_True;
    auto destroy = [](PyObject* capsule) {
        delete static_cast<std::shared_ptr<PlannedCall>*>(PyCapsule_GetPointer(capsule, nullptr));
    };
    Owned capsule(checked(PyCapsule_New(new std::shared_ptr<PlannedCall>(std::move(call)), nullptr, destroy)));
    return PyCFunction_New(&run_method, capsule.object);
    END_HANDLE_TH_ERRORS
}

// counts(function) -> runs by Python, and of each tape the replays and why it was refused
PyObject* counts(PyObject*, PyObject* function) {
    HANDLE_TH_ERRORS
    auto& call = call_of(PyCFunction_GET_SELF(function));
    Owned tapes(checked(PyList_New(0)));
    std::lock_guard<std::mutex> lock(call.mutex);
    for (auto& one : call.tapes) {
        Owned counted(checked(Py_BuildValue("Ls", static_cast<long long>(one->replays), one->refusal.c_str())));
        PyList_Append(tapes.object, counted.object);
    }
    return Py_BuildValue("LO", static_cast<long long>(call.python_runs), tapes.object);
    END_HANDLE_TH_ERRORS
}

// hold(products), release(products): for calls that Python runs.
PyObject* hold(PyObject*, PyObject* number) {
    HANDLE_TH_ERRORS
    auto products = static_cast<Products>(to_int(number));
    bool is_held;
    {
        WithoutGil without_gil;  // another thread that holds it may wait for Python
        is_held = setting_of(products).hold(products, [] {
            WithGil with_gil;
            return PyErr_CheckSignals() != 0;
        });
    }
    if (!is_held) return nullptr;
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject* release(PyObject*, PyObject* number) {
    HANDLE_TH_ERRORS
    auto products = static_cast<Products>(to_int(number));
    setting_of(products).release(products);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"make", make, METH_VARARGS, nullptr}, {"counts", counts, METH_O, nullptr}, {"hold", hold, METH_O, nullptr},
    {"release", release, METH_O, nullptr}, {}};
PyModuleDef module{PyModuleDef_HEAD_INIT, "ecornn_host", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_ecornn_host() { return PyModule_Create(&module); }
